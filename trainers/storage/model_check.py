"""Ask the code that will load a model whether it can: `python -m trainers.storage.model_check MODEL`.

MODEL is a directory, or the name of a model on the hub. The last line that it prints is a JSON object: `{"fault": ""}`
when config and tokenizer of the directory load, and encode what drivers ask of it first, else the fault in a sentence;
that is there also when this process dies of the directory. Of a name it tells whether the hub has it, and in
`directory` where its files are cached, if they are: nothing of them is read. What loads and cannot be trained all the
same has the sentence for that in `untrainable`.

It is a program because the control plane imports neither torch nor transformers, and because what it reads may be
hostile: it limits itself, and whoever starts it builds walls around it. torch is hidden from transformers: config and
tokenizer need none, and the answer takes one second instead of four. No weight is read.
"""

import contextlib
import importlib.util
import json
import os
import resource
import string
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import msgspec

from environments.chat.rendered import PROBES
from environments.chat.tokenizer import ChatTokenizer
from trainers.model.layers import why_untrainable
from trainers.storage.model_files import CONFIG, NO_TRANSFORMERS, TOKENIZERS, ModelFault

_HUB_DEADLINE_S = 2.0
_LIMITS = {
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_CPU: 15,
    resource.RLIMIT_DATA: 2 * 2**30,
    resource.RLIMIT_FSIZE: 2**20,
    resource.RLIMIT_NOFILE: 256,
}
"""A tokenizer may be made to ask for everything. The largest take six seconds of CPU time, and less than a gigabyte."""
_HIDDEN = {"torch", "torchvision", "torchaudio", "tensorflow", "sklearn", "PIL"}
"""Packages that transformers loads when it finds them, which takes seconds."""


def check(model: str, *, trust_remote_code: bool) -> dict[str, str]:
    """The answer for one model."""
    found = untrainable = ""
    try:
        if Path(model).is_absolute():
            untrainable = _load(Path(model), trust_remote_code)
        elif cached := _cached(model):
            found = str(cached)
        else:
            _check_on_hub(model, trust_remote_code)
    except ModelFault as fault:
        return _answer(fault=str(fault))
    return _answer(directory=found, untrainable=untrainable)


def _answer(fault: str = "", directory: str = "", untrainable: str = "") -> dict[str, str]:
    return {"fault": fault, "directory": directory, "untrainable": untrainable}


def _load(directory: Path, trust_remote_code: bool) -> str:
    """Load config and tokenizer as trainers do. Returns why it cannot be trained, or "". Raises ModelFault."""
    from transformers import AutoConfig, AutoTokenizer

    try:
        config = AutoConfig.from_pretrained(directory, trust_remote_code=trust_remote_code)
        why = why_untrainable(config)
    except Exception as error:  # noqa: BLE001 - whatever it is, the trainer would die of it
        raise ModelFault(f"{directory} has a config that does not load: {_first_sentence(error)}") from None
    brings_code = trust_remote_code and bool(getattr(config, "auto_map", None))
    _check_architecture(str(directory), config.model_type, brings_code)
    is_common = (directory / TOKENIZERS[0]).is_file()
    try:
        AutoTokenizer.from_pretrained(
            directory, trust_remote_code=trust_remote_code, mistral_format=False if is_common else None
        )
    except Exception as error:  # noqa: BLE001
        raise ModelFault(f"{directory} has a tokenizer that does not load: {_first_sentence(error)}") from None
    return f"{directory} {why}" if why else ""


def _encode(directory: Path) -> None:
    """Have the tokenizer encode what drivers do first, to find its chat format. May end this process, as theirs.

    Raises MemoryError.
    """
    with contextlib.suppress(OSError, ValueError):  # drivers leave such a tokenizer alone
        ChatTokenizer(directory).encode(msgspec.json.encode(PROBES).decode() + string.printable)


def _check_architecture(model: str, model_type: str, brings_code: bool) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not brings_code:
        raise ModelFault(f"{model} is of type {model_type!r}, of which transformers has no causal language model")


def _cached(name: str) -> Path | None:
    """Where the hub's cache has the model, or None without its config. Raises ModelFault for a name that cannot be."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        config = try_to_load_from_cache(name, CONFIG)
    except HFValidationError:
        raise ModelFault(f"{name!r} is neither a directory nor the name of a model") from None
    return Path(config).parent if isinstance(config, str) else None


def _check_on_hub(name: str, trust_remote_code: bool) -> None:
    """Ask the hub which files the model has. Raises ModelFault."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import OfflineModeIsEnabled, RepositoryNotFoundError

    away = f"{name} is not in the hub's cache on this machine, and the hub cannot be reached"
    try:
        info = HfApi().model_info(name, timeout=_HUB_DEADLINE_S)
    except RepositoryNotFoundError:
        raise ModelFault(f"the hub has no model {name}, or it needs a token") from None
    except OfflineModeIsEnabled:
        raise ModelFault(f"{away} (HF_HUB_OFFLINE is set): name a directory") from None
    except Exception as error:  # noqa: BLE001 - of the hub's client, whose HTTP library changes with its version
        raise ModelFault(f"{away} ({_first_sentence(error)}): name a directory, or download it first") from None
    names = {sibling.rfilename for sibling in info.siblings or []}
    if CONFIG not in names:
        raise ModelFault(f"{name} on the hub has no config.json")
    if not any(each.endswith((".safetensors", ".bin")) for each in names):
        raise ModelFault(f"{name} on the hub has no weights (*.safetensors)")
    if not names & set(TOKENIZERS):
        raise ModelFault(f"{name} on the hub has no tokenizer")
    if info.config and (model_type := info.config.get("model_type")):
        _check_architecture(name, model_type, trust_remote_code)


def _first_sentence(error: Exception) -> str:
    words = str(error).strip().partition("\n")[0].partition(". ")[0].rstrip(".")
    return f"{type(error).__name__}: {words}"[:300] if words else type(error).__name__


class _HidingFinder:
    """Makes transformers believe that some packages are not installed."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] in _HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def _hide_torch() -> None:
    sys.meta_path.insert(0, _HidingFinder)  # type: ignore[arg-type]
    find_spec = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name.partition(".")[0] in _HIDDEN else find_spec(name, package)

    importlib.util.find_spec = find


def main() -> int:
    """Check one model."""
    model, *options = sys.argv[1:]
    for limit, most in _LIMITS.items():
        _, allowed = resource.getrlimit(limit)
        most = most if allowed == resource.RLIM_INFINITY else min(most, allowed)
        resource.setrlimit(limit, (most, most))
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")
    if importlib.util.find_spec("transformers") is None:
        return NO_TRANSFORMERS
    _hide_torch()
    is_spoken = Path(model).is_absolute() and (Path(model) / TOKENIZERS[0]).is_file()
    """Drivers load no other tokenizer."""
    if is_spoken:  # the last word, unless we come to another
        words = "breaks what loads it and encodes a few words, or takes too much time or memory for that"
        _print(_answer(fault=f"{model} has a config or tokenizer that {words}: save both again"))
    answer = check(model, trust_remote_code="--trust-remote-code" in options)
    with contextlib.suppress(MemoryError):
        if is_spoken and not answer["fault"]:
            _encode(Path(model))
        _print(answer)
    return 0


def _print(answer: dict[str, str]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
