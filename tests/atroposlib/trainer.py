"""A trainer in the manner of Atropos' example: `python trainer.py URL --model DIR --steps N`. Only requests and torch.

    /info answers ─► /register ─► /batch until it is null ─► one optimizer step per batch ─► /batch until it is null ...

Knows nothing of Rollyard. Prints one JSON object per optimizer step.
"""

import argparse
import json
import time
from typing import Any

import requests
import torch
from transformers import AutoModelForCausalLM

SEQUENCE_MULTIPLE = 64
IGNORED = -100
CLIP = 0.2
POLL_S = 0.5
PATIENCE_S = 120.0
"""How long it goes on asking for a batch that does not come."""


def wait_for_server(url: str) -> None:
    """Ask for `/info` until it answers 200."""
    deadline = time.monotonic() + 30
    while requests.get(f"{url}/info", timeout=60).status_code != 200:
        if time.monotonic() > deadline:
            raise SystemExit(f"{url}/info did not answer 200 within 30 s.")
        time.sleep(1)


def register(url: str, batch_size: int, steps: int) -> None:
    """Say what it will train; the number in the answer is used nowhere."""
    terms = {
        "wandb_group": "",
        "wandb_project": "letters",
        "batch_size": batch_size,
        "max_token_len": 512,
        "starting_step": 0,
        "checkpoint_dir": "checkpoints",
        "save_checkpoint_interval": steps,
        "num_steps": steps,
    }
    answer = requests.post(f"{url}/register", json=terms, timeout=60)
    answer.raise_for_status()
    assert "uuid" in answer.json(), answer.text


def drain(url: str) -> list[list[dict[str, Any]]]:
    """All batches there are, at least one: what came before the first null."""
    batches: list[list[dict[str, Any]]] = []
    deadline = time.monotonic() + PATIENCE_S
    while True:
        data = requests.get(f"{url}/batch", timeout=60).json()
        if data.get("status") == "error":
            raise SystemExit(f"{url}/batch: {data['message']}")
        if data["batch"] is not None:
            batches.append(data["batch"])
        elif batches:
            return batches
        elif time.monotonic() > deadline:
            raise SystemExit(f"No batch within {PATIENCE_S:.0f} s.")
        else:
            time.sleep(POLL_S)


def collate(batch: list[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, labels and inference logprobs [B, T], advantages [B]; rows padded to a multiple of SEQUENCE_MULTIPLE."""
    longest = max(len(row) for item in batch for row in item["tokens"])
    width = -(-longest // SEQUENCE_MULTIPLE) * SEQUENCE_MULTIPLE
    tokens, labels, logprobs, advantages = [], [], [], []
    for item in batch:
        scores = torch.tensor(item["scores"], dtype=torch.float64)
        scores = (scores - scores.mean()) / scores.std(correction=0).clamp(min=1e-8)
        if item["overrides"] is not None:
            for index, override in enumerate(item["overrides"]):
                if override.get("set_advantage_to_zero", False):
                    scores[index] = 0.0
        advantages.append(scores.float())
        for row, mask, sampled in zip(item["tokens"], item["masks"], item["inference_logprobs"], strict=True):
            padding = width - len(row)
            tokens.append(row + [0] * padding)
            labels.append(mask + [IGNORED] * padding)
            logprobs.append(sampled + [1.0] * padding)
    return torch.tensor(tokens), torch.tensor(labels), torch.tensor(logprobs), torch.cat(advantages)


def train_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: list[dict[str, Any]]) -> float:
    """One optimizer step of clipped policy gradient on a batch; the loss, a mean over trained tokens."""
    tokens_BT, labels_BT, inference_logprobs_BT, advantages_B = collate(batch)
    logits_BTV = model(input_ids=tokens_BT[:, :-1]).logits.float()
    trained_BT = labels_BT[:, 1:] != IGNORED
    targets_BT = labels_BT[:, 1:].clamp(min=0)
    logprobs_BT = torch.log_softmax(logits_BTV, dim=-1).gather(-1, targets_BT[..., None])[..., 0]
    ratio_BT = torch.where(trained_BT, logprobs_BT - inference_logprobs_BT[:, 1:], 0.0).exp()
    advantage_B1 = advantages_B[:, None]
    gain_BT = torch.minimum(ratio_BT * advantage_B1, ratio_BT.clamp(1 - CLIP, 1 + CLIP) * advantage_B1)
    loss = -(gain_BT * trained_BT).sum() / trained_BT.sum()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(loss)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch-size", type=int, default=8, help="in sequences")
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    wait_for_server(arguments.url)
    register(arguments.url, arguments.batch_size, arguments.steps)
    step = 0
    while step < arguments.steps:
        for batch in drain(arguments.url):
            loss = train_step(model, optimizer, batch)
            tokens = [item["tokens"] for item in batch]
            print(json.dumps({"step": step, "loss": loss, "tokens": tokens}), flush=True)
            step += 1


if __name__ == "__main__":
    main()
