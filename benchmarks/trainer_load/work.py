"""What is trained on: a model of a given size and made-up rollouts, in a directory that any trainer can read.

    model/       weights and tokenizer in the Hugging Face layout; its weights are random
    work.json    {"kind", "device", "dtype", "warmup", "lr", "group_size",
                  "steps": [[{"prompt": [ids], "completion": [ids], "reward", "advantage", "group"}, ...], ...]}

A step is one batch and one optimizer step; the first `warmup` steps are not counted. Every trainer that is compared
reads the same directory, so it sees the same tokens in the same batches. Advantages are rewards minus the mean of their
group, and the loss is meant to be summed over the completion tokens of a batch and divided by their number.

Lengths of completions are log-normal, as those of generated answers are: half of their variance is the problem's, half
is chance, and the longest are cut off. Lengths of prompts are uniform, and the same throughout a group.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from trainers.model.tiny import tiny_tokenizer

HEAD_WIDTH = 64
LR = 1e-4


def add_options(add: Any) -> None:
    """Options of the sizes."""
    add("--model", type=Path, help="a model directory, instead of a random Qwen3 of the next three sizes")
    add("--width", type=int, default=256, help=f"of the hidden states, a multiple of {HEAD_WIDTH}")
    add("--layers", type=int, default=4)
    add("--vocabulary", type=int, default=4096, help="token ids are below it, for --model too")
    add("--rollouts", type=int, default=32, help="in a batch")
    add("--group-size", type=int, default=8)
    add("--prompt", type=int, default=96, metavar="TOKENS", help="longest prompt; the shortest has a third of it")
    add("--completion", type=int, default=192, metavar="TOKENS", help="median of the completions")
    add("--spread", type=float, default=0.6, help="deviation of the logarithm of their lengths; 0: all are equal")
    add("--longest", type=int, default=1024, metavar="TOKENS", help="completions are cut off there")
    add("--seed", type=int, default=0)


def write_work(directory: Path, options: argparse.Namespace) -> None:
    """Make the model, unless there is one, and the batches."""
    model = directory / "model"
    if options.model is None:
        write_model(model, options.width, options.layers, options.vocabulary, options.seed)
    else:
        model.symlink_to(options.model.resolve())
    rng = np.random.default_rng(options.seed)
    work = {name: getattr(options, name) for name in ("kind", "device", "dtype", "warmup", "group_size")}
    steps = [make_batch(rng, options) for _ in range(options.warmup + options.steps)]
    (directory / "work.json").write_text(json.dumps(work | {"lr": LR, "steps": steps}))


def write_model(directory: Path, width: int, layers: int, vocabulary: int, seed: int) -> None:
    """A Qwen3 with random weights and the tokenizer of the tiny model, which knows the first 259 of its tokens."""
    tokenizer = tiny_tokenizer()
    config = Qwen3Config(
        vocab_size=max(vocabulary, len(tokenizer)),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // HEAD_WIDTH,
        num_key_value_heads=width // HEAD_WIDTH,
        head_dim=HEAD_WIDTH,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(seed)
    Qwen3ForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def make_batch(rng: np.random.Generator, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rollouts of one step; groups follow each other."""
    rollouts: list[dict[str, Any]] = []
    for group in range(options.rollouts // options.group_size):
        prompt = _tokens(rng, int(rng.integers(options.prompt // 3, options.prompt + 1)), options.vocabulary)
        rewards = rng.random(options.group_size)
        deviation = options.spread / math.sqrt(2)
        typical = math.log(options.completion) + deviation * rng.normal()
        for reward in rewards:
            length = round(math.exp(typical + deviation * rng.normal()))
            rollouts.append(
                {
                    "prompt": prompt,
                    "completion": _tokens(rng, min(max(length, 1), options.longest), options.vocabulary),
                    "reward": float(reward),
                    "advantage": float(reward - rewards.mean()),
                    "group": str(group),
                }
            )
    return rollouts


def _tokens(rng: np.random.Generator, count: int, vocabulary: int) -> list[int]:
    return [int(token) for token in rng.integers(0, vocabulary, count)]
