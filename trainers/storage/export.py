"""Checkpoints as models that anybody loads: `python -m trainers.storage.export CHECKPOINT DIRECTORY --model JSON`.

    checkpoints/step_N + model.path  ->  a Hugging Face directory: safetensors, config, tokenizer

One process without torchrun, whatever the number of ranks that wrote the checkpoint. A LoRA adapter is added to the
weights beside it. The control plane, which has no torch, starts this program.
"""

import argparse
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM

from trainers.child import die_with_parent
from trainers.model.lora import add_adapter, merge_adapter
from trainers.model.policy import DTYPES, load_tokenizer
from trainers.run_config import ModelConfig
from trainers.storage.checkpoint import load_model
from trainers.storage.weights import spread_weights, write_weights


def export_checkpoint(checkpoint: Path, config: ModelConfig, directory: Path, dtype: torch.dtype) -> None:
    """Fill an empty directory with the model that a verified checkpoint of a run with this `config` holds."""
    transformers.utils.logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        config.path, dtype=torch.float32, trust_remote_code=config.trust_remote_code
    )
    if config.lora.rank:
        add_adapter(model, config.lora.model_copy(update={"path": ""}))
    load_model(checkpoint, model)
    if config.lora.rank:
        merge_adapter(model)
    write_weights(directory, model, spread_weights(model, None, dtype), load_tokenizer(config), dtype)


def main() -> None:
    """Export one checkpoint."""
    parser = argparse.ArgumentParser(prog="python -m trainers.storage.export", description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path, help="Its files are taken for verified.")
    parser.add_argument("directory", type=Path, help="An empty one.")
    parser.add_argument("--model", required=True, help="The `model` section of the run that wrote it, as JSON.")
    parser.add_argument("--dtype", choices=sorted(DTYPES), required=True, help="Number format to write.")
    arguments = parser.parse_args()
    die_with_parent()
    config = ModelConfig.model_validate_json(arguments.model)
    export_checkpoint(arguments.checkpoint, config, arguments.directory, DTYPES[arguments.dtype])


if __name__ == "__main__":
    main()
