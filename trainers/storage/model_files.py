"""A directory with a Hugging Face model, read without torch: what is in it, and whether everything that loads is there.

    config.json                      architecture
    *.safetensors (and their index)  weights: a header of JSON behind eight bytes, which gives every tensor's shape
    tokenizer.json and its kin       tokenizer, chat template

Reads headers and small files only; `hash_files` alone reads every byte.
"""

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from trainers.storage.durable import MANIFEST

CONFIG = "config.json"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
"""One of these makes a tokenizer; the first is what the others are converted to."""
NO_TRANSFORMERS = 3
"""Exit status of `trainers.storage.model_check` when there is no transformers to ask."""
_INDEX = "model.safetensors.index.json"
_LOADED = (
    *(CONFIG, "generation_config.json", _INDEX, *TOKENIZERS),
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt"),
    *("chat_template.jinja", "chat_template.json"),
)
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


class ModelFault(Exception):
    """The files are no model that loads; the message is a sentence without its subject, and names the fix."""


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


def read_facts(directory: Path) -> ModelFacts:
    """What is in the directory. Raises ModelFault for the first thing that is missing or broken."""
    if not directory.exists():
        raise ModelFault(f"{directory} does not exist on this machine")
    if not directory.is_dir():
        raise ModelFault(f"{directory} is a file: name the directory that holds config.json")
    if not (directory / CONFIG).is_file():
        raise ModelFault(f"{directory} holds no config.json: name a directory with a Hugging Face model")
    config = _read_json(directory / CONFIG)
    if not config.get("model_type") and not config.get("auto_map"):
        raise ModelFault(f"{directory / CONFIG} names no model_type: it is not of a Hugging Face model")
    parameters = _count_parameters(directory)
    if not any((directory / name).is_file() for name in TOKENIZERS):
        raise ModelFault(f"{directory} holds no tokenizer ({TOKENIZERS[0]}): save it beside the weights")
    tokenizer_config = _read_json(directory / "tokenizer_config.json", {})
    return ModelFacts(
        architecture=str(next(iter(config.get("architectures") or []), config.get("model_type", ""))),
        model_type=str(config.get("model_type", "")),
        parameters=parameters,
        tokenizer=str(tokenizer_config.get("tokenizer_class") or "PreTrainedTokenizerFast"),
        vocabulary=_count_tokens(directory),
        has_chat_template=_has_chat_template(directory, tokenizer_config),
        size_bytes=sum(path.stat().st_size for path in list_files(directory)),
    )


def list_files(directory: Path) -> list[Path]:
    """The files that loading may read, by name; Python files too, which a model may bring along."""
    found = {path for pattern in (*_WEIGHTS, "*.py") for path in directory.glob(pattern)}
    return sorted(found | {path for name in _LOADED if (path := directory / name).is_file()})


def hash_files(directory: Path) -> str:
    """SHA-256 over name and content of every file that loads: the same model has the same hash wherever it lies.

    Hashes that a manifest beside the files holds are taken from there; otherwise every byte is read.
    """
    known = _manifest_hashes(directory)
    total = hashlib.sha256()
    for path in list_files(directory):
        total.update(f"{path.name}\0{known.get(path.name) or _hash(path)}\n".encode())
    return total.hexdigest()


def fingerprint(directory: Path) -> tuple[tuple[str, int, int], ...]:
    """Name, size and modification time of each file that loads: while it is the same, so is the model."""
    stats = [(path.name, path.stat()) for path in list_files(directory)]
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


def _count_parameters(directory: Path) -> int | None:
    """Elements of all tensors of the weights. Raises ModelFault when a file is missing, cut off or unreadable."""
    index = directory / _INDEX
    if index.is_file():
        names = sorted(set(_read_json(index).get("weight_map", {}).values()))
        if lost := [name for name in names if not (directory / name).is_file()]:
            raise ModelFault(f"{directory} lacks {len(lost)} of {len(names)} weight files, such as {lost[0]}")
        paths = [directory / name for name in names]
    else:
        paths = sorted(directory.glob("*.safetensors"))
    if not paths:
        if any(directory.glob("pytorch_model*.bin")):
            return None
        raise ModelFault(f"{directory} holds no weights (*.safetensors): copy them beside config.json")
    return sum(_elements(path) for path in paths)


def _elements(path: Path) -> int:
    """Of all tensors of a safetensors file, of which the header alone is read; the file must be as long as it says."""
    try:
        with safe_open(path, framework="numpy") as file:
            return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118 - no mapping
    except (OSError, SafetensorError) as error:
        raise ModelFault(f"{path} is not a whole safetensors file ({error}): copy it again") from None


def _count_tokens(directory: Path) -> int | None:
    if not (path := directory / TOKENIZERS[0]).is_file():
        return None
    content = _read_json(path)
    try:
        vocabulary = content["model"]["vocab"]
        words = vocabulary if isinstance(vocabulary, dict) else (word for word, _ in vocabulary)
        return len({*words, *(token["content"] for token in content.get("added_tokens") or [])})
    except (KeyError, TypeError, ValueError):
        return None


def _has_chat_template(directory: Path, tokenizer_config: dict[str, Any]) -> bool:
    beside = any((directory / name).is_file() for name in ("chat_template.jinja", "chat_template.json"))
    return beside or bool(tokenizer_config.get("chat_template"))


def _read_json(path: Path, default: dict[str, Any] | None = None) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        if default is None:
            raise
        return default
    except (OSError, ValueError) as error:
        raise ModelFault(f"{path} cannot be read ({error}): copy it again") from None
    if not isinstance(content, dict):
        raise ModelFault(f"{path} holds no JSON object: copy it again")
    return content


def _manifest_hashes(directory: Path) -> dict[str, str]:
    try:
        files = json.loads((directory / MANIFEST).read_bytes())["files"]
        entries = [(directory / entry["name"], entry) for entry in files]
        return {path.name: entry["sha256"] for path, entry in entries if path.stat().st_size == entry["size_bytes"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
