"""A policy version's weights as a model that vLLM and transformers load, written a piece at a time.

    config.json, generation_config.json, the tokenizer's files    as transformers writes them
    preprocessor_config.json and its kin                          as they lie beside the model that training starts from
    model.safetensors                                             byte for byte what transformers would write

Each tensor is filled in as it comes (`trainers/storage/safetensors_file.py`), and whoever writes holds no more than a
piece. Above 50 GB there are several files and an index, as transformers splits them. Only where the files of a model
have other tensors than the model itself, such as one for each expert where the model has one for all, is the whole
state put together for transformers to take apart.
"""

import fnmatch
import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.core_model_loading import WeightConverter, revert_weight_conversion
from transformers.utils import CONFIG_NAME, GENERATION_CONFIG_NAME, SAFE_WEIGHTS_INDEX_NAME
from transformers.utils.hub import cached_file

from environments.chat.files import MAX_CONFIG_BYTES, MAX_ENTRIES
from environments.disk import ForeignDirectory
from trainers.distributed.mesh import World
from trainers.distributed.spread import SpreadTensors, exact_names, model_tensors
from trainers.storage.safetensors_file import header

_MAX_FILE = "50GB"
_OF_PROCESSORS = ("*processor*.json", "chat_template.json")


def spread_weights(model: PreTrainedModel, world: World | None, dtype: torch.dtype) -> SpreadTensors:
    """What a version holds of a model all of whose weights are trained, in `dtype`. Collective.

    What trainers and engines compute with in float32 stays as precise as it is: a bias that decides which experts are
    chosen would choose others once it is rounded.
    """
    tensors = model_tensors(model)
    return SpreadTensors(tensors, world, dict.fromkeys(tensors.keys() - exact_names(model), dtype))


def write_weights(
    directory: Path,
    model: PreTrainedModel,
    tensors: SpreadTensors,
    tokenizer: PreTrainedTokenizerBase,
    dtype: torch.dtype,
) -> None:
    """Fill an empty directory with `spread_weights` of this `dtype`, without another rank."""
    save_weights(directory, model, gather_weights(directory, model, tensors), tokenizer, dtype)


def gather_weights(directory: Path, model: PreTrainedModel, tensors: SpreadTensors) -> dict[str, torch.Tensor] | None:
    """Take `spread_weights` as the other ranks give them, into files of the directory; or return them, where these are
    made of the whole."""
    names = _names_on_disk(model, tensors.empty)
    if names is None:
        return tensors.whole()
    _save(directory, model, {})
    _write_files(directory, model, tensors, names)
    return None


def save_weights(
    directory: Path,
    model: PreTrainedModel,
    whole: dict[str, torch.Tensor] | None,
    tokenizer: PreTrainedTokenizerBase,
    dtype: torch.dtype,
) -> None:
    """Write what is not in the directory yet of what was gathered. Takes long where that is the whole."""
    if whole is not None:
        _save(directory, model, whole)
    tokenizer.save_pretrained(directory)
    _copy_processor(str(model.name_or_path), directory)
    config_path = directory / "config.json"
    config = json.loads(config_path.read_bytes())
    config["dtype"] = str(dtype).removeprefix("torch.")  # save_pretrained names the master weights' type
    for name, kept in getattr(model, "kept_config", {}).items():  # of whoever trains it next
        config[name] = {**config.get(name, {}), **kept} if isinstance(kept, dict) else kept
    config_path.write_text(json.dumps(config, indent=2), encoding="utf-8")


def _save(directory: Path, model: PreTrainedModel, state: dict[str, torch.Tensor]) -> None:
    """As transformers does, but with the sampling values that the model came with: it refuses to write any that stand
    without `do_sample`, and engines take those all the same.
    """
    if not model.can_generate():
        model.save_pretrained(directory, state_dict=state)
        return
    kept, model.generation_config = model.generation_config, GenerationConfig()
    try:
        model.save_pretrained(directory, state_dict=state)
    finally:
        model.generation_config = kept
    kept.to_json_file(directory / GENERATION_CONFIG_NAME, keys_to_pop=["compile_config"])


def _copy_processor(model: str, directory: Path) -> None:
    """Copy what a processor is loaded from: without it engines refuse a model that can see, also for text alone."""
    beside = cached_file(model, CONFIG_NAME)
    assert beside is not None, "it raises where there is none"
    with ForeignDirectory(Path(beside).parent, closed=(), most=MAX_ENTRIES) as files:
        for pattern in _OF_PROCESSORS:
            for name in fnmatch.filter(files.names - {path.name for path in directory.iterdir()}, pattern):
                (directory / name).write_bytes(files.read(name, MAX_CONFIG_BYTES))


def _names_on_disk(model: PreTrainedModel, tensors: Mapping[str, torch.Tensor]) -> dict[str, str] | None:
    """What each tensor is called in the files, by its name in the model; None where files have other tensors.

    A name that is not in it is not written.
    """
    conversions = getattr(model, "_weight_conversions", None)
    if conversions is None or any(isinstance(each, WeightConverter) for each in conversions):
        return None
    ignored = model._keys_to_ignore_on_save or ()
    written = {name: tensor for name, tensor in tensors.items() if name not in ignored}
    known = {id(tensor): name for name, tensor in written.items()}
    return {known[id(tensor)]: name for name, tensor in revert_weight_conversion(model, written).items()}


def _write_files(directory: Path, model: PreTrainedModel, tensors: SpreadTensors, names: Mapping[str, str]) -> None:
    in_model = tensors.empty
    empty = {on_disk: in_model[name] for name, on_disk in names.items()}  # whose order decides which file has what
    split = split_torch_state_dict_into_shards(empty, max_shard_size=_MAX_FILE)
    files: dict[str, BinaryIO] = {}
    places: dict[str, int] = {}
    with ExitStack() as opened:
        for file, held in split.filename_to_tensors.items():
            beginning, begins = header(
                {name: (empty[name].shape, empty[name].dtype) for name in held}, {"format": "pt"}
            )
            files[file] = opened.enter_context((directory / file).open("wb"))
            files[file].write(beginning)
            places |= begins
        for name, piece in tensors.pieces():
            if (on_disk := names.get(name)) is not None:
                into = files[split.tensor_to_filename[on_disk]]
                into.seek(places[on_disk])
                into.write(piece.view(torch.uint8).numpy().data)
                places[on_disk] = into.tell()
    if split.is_sharded:
        facts = {"total_parameters": model.num_parameters(), **split.metadata}
        index = {"metadata": facts, "weight_map": split.tensor_to_filename}
        text = json.dumps(index, indent=2, sort_keys=True) + "\n"
        (directory / SAFE_WEIGHTS_INDEX_NAME).write_text(text, encoding="utf-8")
