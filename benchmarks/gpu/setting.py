"""What the pieces share: their options, the model they use, and how one process is all ranks of a trainer.

The model has the shape of Qwen3-0.6B and random weights in bfloat16. Its tokenizer knows the bytes and the turns of the
tiny model; the rest of the vocabulary are words that nothing is split into, so that whatever is sampled can be decoded.
"""

import argparse
import json
import logging
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from benchmarks.gpu.runner import FAULT
from trainers.distributed.mesh import World, join_ranks, make_world
from trainers.model.tiny import CHAT_TEMPLATE, END, PAD, START
from trainers.run_config import TrainerConfig


@dataclass(frozen=True)
class Size:
    """Sizes of the model and of what it is given."""

    width: int
    layers: int
    heads: int
    key_heads: int
    head_width: int
    inner_width: int
    vocabulary: int
    tokens: int
    """Of a micro-batch."""


QWEN3 = Size(1024, 28, 16, 8, 128, 3072, 151_936, tokens=16_384)
SMALL = Size(128, 2, 4, 2, 32, 192, 512, tokens=256)


def options(*extra: str) -> argparse.Namespace:
    """Options of a piece: `--device`, `--work`, `--small`, and further flags without a value."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--work", type=Path, required=True, help="directory that the pieces share")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--kind", choices=["rl", "sft"], default="rl")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    for flag in extra:
        parser.add_argument(flag, action="store_true")
    found = parser.parse_args()
    found.size = SMALL if found.small else QWEN3
    found.dtype = "bfloat16" if found.device == "cuda" else "float32"
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    return found


def finish(figures: dict[str, Any], fault: str = "") -> NoReturn:
    """End the process: print the figures as the last line, with the fault among them when there is one."""
    print(json.dumps(figures | ({FAULT: fault} if fault else {})))
    sys.stdout.flush()
    sys.stderr.flush()
    # As `run_rank` does: threads of the collectives may abort an interpreter that is taken down around them.
    os._exit(1 if fault else 0)


def model_in(work: Path, size: Size) -> Path:
    """The model's directory below `work`, made by whoever is first."""
    directory = work / f"model-{size.width}"
    if not directory.exists():
        partial = work / f"model-{size.width}.partial"
        write_model(partial, size)
        partial.rename(directory)
    return directory


def write_model(directory: Path, size: Size, seed: int = 0) -> None:
    """A Qwen3 of this size with random weights, and its tokenizer."""
    tokenizer = _tokenizer(size.vocabulary)
    config = Qwen3Config(
        vocab_size=size.vocabulary,
        hidden_size=size.width,
        intermediate_size=size.inner_width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.key_heads,
        head_dim=size.head_width,
        max_position_embeddings=40_960,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(seed)
    Qwen3ForCausalLM(config).bfloat16().save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _tokenizer(size: int) -> PreTrainedTokenizerFast:
    special = [PAD, START, END]
    symbols = sorted(ByteLevel.alphabet())
    words = [f"w{index}" for index in range(size - len(symbols) - len(special))]
    vocabulary = {symbol: index for index, symbol in enumerate([*symbols, *words])}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens(special)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, clean_up_tokenization_spaces=False
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def sole_rank(device: str) -> World:
    """Be a trainer of one process, without torchrun; on CUDA with NCCL, as under torchrun."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {name: str(value) for name, value in (place | {"MASTER_PORT": port}).items()}
    join_ranks()
    return make_world(TrainerConfig.model_validate({"device": device}))


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what it was told, so that a clock means something."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
