"""A directory with a Hugging Face model, read without torch: what is in it, and whether everything that loads is there.

    config.json                      architecture
    *.safetensors (and their index)  weights: a header of JSON behind eight bytes, which gives every tensor's shape
    tokenizer.json and its kin       tokenizer, chat template

Reads headers and small files only; `hash_files` alone reads every byte. Whoever wrote them may be hostile: only regular
files are opened, of each no more is read than a model has, and nothing is decoded that is larger.
"""

import hashlib
import json
import math
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from environments.chat.files import MAX_CONFIG_BYTES, MAX_ENTRIES, MAX_TOKENIZER_BYTES, TOKENIZER, TOKENIZER_CONFIG
from environments.disk import ForeignDirectory
from environments.visible import visible_line
from trainers.storage.durable import MANIFEST, MAX_MANIFEST_BYTES, Manifest, Reading

CONFIG = "config.json"
TOKENIZERS = (TOKENIZER, "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
"""One of these makes a tokenizer; the first is what the others are converted to."""
NO_TRANSFORMERS = 3
"""Exit status of `trainers.storage.model_check` when there is no transformers to ask."""
_ADAPTER = "adapter_config.json"
_INDEX = "model.safetensors.index.json"
_TEMPLATES = ("chat_template.jinja", "chat_template.json")
_LOADED = (
    *(CONFIG, "generation_config.json", _INDEX, *TOKENIZERS),
    *(TOKENIZER_CONFIG, "special_tokens_map.json", "added_tokens.json", "merges.txt"),
    *_TEMPLATES,
)
_WEIGHTS, _OLD_WEIGHTS = "*.safetensors", "pytorch_model*.bin"

_DESCRIBING = ("*.json", "*.jinja", "*.model", "*.tiktoken", "*.txt")
"""What config and tokenizer are loaded from."""

_LENGTH_BYTES = 8
"""Of a safetensors header, before it."""
_MAX_INDEX_BYTES = 64 * 2**20
"""Of the largest models it is half of it."""
_MAX_HEADERS_BYTES = 128 * 2**20
"""Of all safetensors files together."""
_MAX_DESCRIPTION_BYTES = 128 * 2**20
_MAX_NAME = 255
_MAX_SIZE = 2**63 - 1
_BITS = re.compile(r"BOOL|[A-Z]+(\d{1,3})(_\w+)?")
_decoding = threading.Lock()
"""One at a time: what is decoded takes ten times the memory of its text."""
_DAMAGED = (msgspec.MsgspecError, ValueError, RecursionError)
"""What decoding raises."""
_T = TypeVar("_T")
_D = TypeVar("_D")
_Count = Annotated[int, msgspec.Meta(ge=0, le=_MAX_SIZE)]


class _Tensor(msgspec.Struct):
    """As a header has it, and its metadata too, which has none of these."""

    dtype: str = "BOOL"
    shape: Annotated[list[_Count], msgspec.Meta(max_length=64)] = []
    data_offsets: tuple[_Count, _Count] = (0, 0)


class _Index(msgspec.Struct):
    weight_map: dict[str, str] = {}


class _Vocabulary(msgspec.Struct):
    vocab: dict[str, int] | list[tuple[str, float]]


class _Added(msgspec.Struct):
    content: str


class _Tokenizer(msgspec.Struct):
    model: _Vocabulary
    added_tokens: list[_Added] | None = None


class ModelFault(Exception):
    """The files are no model that loads; the message is a sentence without its subject, and names the fix."""

    def __init__(self, message: str) -> None:
        super().__init__(visible_line(message)[:1000])  # names of files, and what others say of them, are anybody's


@dataclass(frozen=True)
class ModelFacts:
    """What the files of a model say of it."""

    architecture: str
    """Class that the weights are of, such as Qwen3ForCausalLM."""
    model_type: str
    parameters: int | None
    """None for weights that are not safetensors: their headers are programs."""
    tokenizer: str
    """Its class."""
    vocabulary: int | None
    """Tokens that the tokenizer knows; None when only its own code can count them."""
    has_chat_template: bool
    size_bytes: int
    """Of the files that load."""


def read_facts(directory: Path, closed: Iterable[Path] = ()) -> ModelFacts:
    """What is in the directory. Raises ModelFault for the first thing that is missing or broken.

    ``closed``: where runs write, as for `ForeignDirectory`.
    """
    with _opened(directory, closed) as files:
        if CONFIG not in files.names and _ADAPTER in files.names:
            fix = "add it to the weights of its model, and name the directory of both"
            raise ModelFault(f"{directory} holds an adapter, and here a whole model is named: {fix}")
        if CONFIG not in files.names:
            raise ModelFault(f"{directory} holds no config.json: name a directory with a Hugging Face model")
        config = _read_object(files, CONFIG)
        if not config.get("model_type") and not config.get("auto_map"):
            raise ModelFault(f"{directory / CONFIG} names no model_type: it is not of a Hugging Face model")
        parameters = _count_parameters(files)
        if files.names.isdisjoint(TOKENIZERS):
            raise ModelFault(f"{directory} holds no tokenizer ({TOKENIZERS[0]}): save it beside the weights")
        tokenizer = _read_object(files, TOKENIZER_CONFIG) if TOKENIZER_CONFIG in files.names else {}
        size_bytes = sum(files.size_bytes(name) for name in _list_loaded(files))
        if max(size_bytes, parameters or 0) > _MAX_SIZE:
            raise ModelFault(f"{directory} is larger than any disk")
        model_type, architectures = _text(config.get("model_type")), config.get("architectures")
        return ModelFacts(
            architecture=_text(architectures[0]) if isinstance(architectures, list) and architectures else model_type,
            model_type=model_type,
            parameters=parameters,
            tokenizer=_text(tokenizer.get("tokenizer_class")) or "PreTrainedTokenizerFast",
            vocabulary=_count_tokens(files),
            has_chat_template=not files.names.isdisjoint(_TEMPLATES) or bool(tokenizer.get("chat_template")),
            size_bytes=size_bytes,
        )


def hash_files(directory: Path, closed: Iterable[Path] = ()) -> str:
    """SHA-256 over name and content of every file that loads: the same model has the same hash wherever it lies.

    Hashes that a manifest beside the files holds are taken from there; otherwise every byte is read. As `read_facts`.
    """
    total, reading = hashlib.sha256(), Reading()
    with _opened(directory, closed) as files:
        known = _manifest_hashes(files)
        for name in _list_loaded(files):
            if (found := known.get(name)) is None:
                with files.open(name) as file:
                    found = reading.sha256(file)
            total.update(os.fsencode(name) + f"\0{found}\n".encode())
    return total.hexdigest()


def fingerprint(directory: Path, closed: Iterable[Path] = ()) -> tuple[tuple[str, int, int], ...]:
    """Name, size and modification time of each file that loads: while it is the same, so is the model."""
    found = []
    with _opened(directory, closed) as files:
        for name in _list_loaded(files):
            with files.open(name) as file:
                status = os.fstat(file.fileno())
            found.append((name, status.st_size, status.st_mtime_ns))
    return tuple(found)


def copy_description(directory: Path, to: Path, closed: Iterable[Path] = ()) -> None:
    """Copy what config and tokenizer are loaded from, for a program that must see no more. As `read_facts`."""
    left, copied = _MAX_DESCRIPTION_BYTES, {}
    with _opened(directory, closed) as files:
        for name in _matching(files, *_DESCRIBING):
            if name != _INDEX:
                copied[name] = files.read(name, left)
                left -= len(copied[name])
    for name, content in copied.items():
        (to / name).write_bytes(content)
        (to / name).chmod(0o644)


@contextmanager
def _opened(directory: Path, closed: Iterable[Path]) -> Iterator[ForeignDirectory]:
    """The directory; what cannot be read of it is a ModelFault."""
    try:
        with ForeignDirectory(directory, closed=closed, most=MAX_ENTRIES) as files:
            yield files
    except OSError as error:
        path = error.filename or directory
        if path == str(directory) and isinstance(error, FileNotFoundError):
            raise ModelFault(f"{directory} does not exist on this machine") from None
        if path == str(directory) and isinstance(error, NotADirectoryError):
            raise ModelFault(f"{directory} is a file: name the directory that holds config.json") from None
        raise _unreadable(path, error.strerror or str(error)) from None


def _unreadable(path: str | Path, words: object) -> ModelFault:
    return ModelFault(f"{path} cannot be read ({words}): copy it again")


def _matching(files: ForeignDirectory, *patterns: str) -> list[str]:
    return sorted(name for name in files.names if any(fnmatchcase(name, pattern) for pattern in patterns))


def _list_loaded(files: ForeignDirectory) -> list[str]:
    """The files that loading may read, by name; Python files too, which a model may bring along."""
    return _matching(files, *_LOADED, _WEIGHTS, _OLD_WEIGHTS, "*.py")


def _read_object(files: ForeignDirectory, name: str) -> dict[str, Any]:
    try:
        content = json.loads(files.read(name, MAX_CONFIG_BYTES))  # for Infinity, which other decoders refuse
    except _DAMAGED as error:
        raise _unreadable(files.path / name, error) from None
    if not isinstance(content, dict):
        raise ModelFault(f"{files.path / name} holds no JSON object: copy it again")
    return content


def _distil(content: bytes, kind: type[_T], distil: Callable[[_T], _D]) -> _D:
    """What is wanted of much JSON. Raises what is in _DAMAGED."""
    with _decoding:
        return distil(msgspec.json.decode(content, type=kind))


def _count_parameters(files: ForeignDirectory) -> int | None:
    """Elements of all tensors of the weights. Raises ModelFault when a file is missing, cut off or unreadable."""
    names, path = _matching(files, _WEIGHTS), files.path
    if _INDEX in files.names:
        try:
            names = _distil(files.read(_INDEX, _MAX_INDEX_BYTES), _Index, _files_of)
        except _DAMAGED as error:
            raise _unreadable(path / _INDEX, error) from None
        if lost := [name for name in names if name not in files.names]:
            raise ModelFault(f"{path} lacks {len(lost)} of {len(names)} weight files, such as {lost[0][:_MAX_NAME]}")
    if not names:
        if _matching(files, _OLD_WEIGHTS):
            return None
        raise ModelFault(f"{path} holds no weights (*.safetensors): copy them beside config.json")
    total, left = 0, _MAX_HEADERS_BYTES
    for name in names:
        with files.open(name) as file:
            size_bytes, length = os.fstat(file.fileno()).st_size, int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if length > left:
                raise _broken(path / name, "header too large")
            header = file.read(length)
        left -= length
        try:
            total += _distil(header, dict[str, _Tensor], _elements_in(size_bytes - _LENGTH_BYTES - length))
        except _DAMAGED as error:
            raise _broken(path / name, error) from None
    return total


def _broken(path: Path, words: object) -> ModelFault:
    return ModelFault(f"{path} is not a whole safetensors file ({words}): copy it again")


def _files_of(index: _Index) -> list[str]:
    return sorted(set(index.weight_map.values()))


def _elements_in(data_bytes: int) -> Callable[[dict[str, _Tensor]], int]:
    """Counts those of all tensors of a header; the file must be as long as it says, else ValueError."""

    def count(tensors: dict[str, _Tensor]) -> int:
        tensors.pop("__metadata__", None)
        total = at = 0
        for tensor in sorted(tensors.values(), key=lambda each: each.data_offsets):
            begin, end = tensor.data_offsets
            elements, bits = math.prod(tensor.shape), _BITS.fullmatch(tensor.dtype)
            if begin != at or bits is None or elements * int(bits[1] or 8) != 8 * (end - begin):
                raise ValueError("tensors that do not follow each other")
            total, at = total + elements, end
        if at != data_bytes:
            raise ValueError("file not fully covered")
        return total

    return count


def _count_tokens(files: ForeignDirectory) -> int | None:
    if TOKENIZER not in files.names:
        return None
    try:
        return _distil(files.read(TOKENIZER, MAX_TOKENIZER_BYTES), _Tokenizer, _tokens)
    except msgspec.ValidationError:  # of a kind that only its own code reads
        return None
    except _DAMAGED as error:
        raise _unreadable(files.path / TOKENIZER, error) from None


def _tokens(tokenizer: _Tokenizer) -> int:
    vocabulary = tokenizer.model.vocab
    words = set(vocabulary if isinstance(vocabulary, dict) else (word for word, _ in vocabulary))
    return len(words.union(token.content for token in tokenizer.added_tokens or []))


def _manifest_hashes(files: ForeignDirectory) -> dict[str, str]:
    try:
        manifest = msgspec.json.decode(files.read(MANIFEST, MAX_MANIFEST_BYTES), type=Manifest)
        known, loaded = {entry.name: entry for entry in manifest.files}, _list_loaded(files)
        return {
            name: known[name].sha256
            for name in loaded
            if name in known and files.size_bytes(name) == known[name].size_bytes
        }
    except (OSError, *_DAMAGED):
        return {}


def _text(value: Any) -> str:
    return visible_line(value) if isinstance(value, str) else ""
