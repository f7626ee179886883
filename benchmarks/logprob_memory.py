"""Peak memory of the logprobs of trained tokens, forward and backward: chunk by chunk beside all logits at once.

    python -m benchmarks.logprob_memory [--tokens 8192] [--vocabulary 150000] [--width 256] [--device cuda]
                                        [--path chunked rounded bare naive] [--dtype bfloat16]

Each path runs in a process of its own, because a process's peak never falls; the peak of a third one that only makes
the inputs is subtracted. On a GPU the peak is that of the tensors on it. The chunked path is ours, and so is the
rounded one, as models in bfloat16 have it on a GPU. The naive path does what ours does: logprobs and entropies. The
bare one has no entropy and scales in place: nothing that holds all logits needs less. At the default size the naive
path needs about 25 GB.
"""

import argparse
import subprocess
import sys
import time
from functools import partial

import torch

from trainers.metrics.throughput import peak_memory_gib
from trainers.model.lm_head import TokenScores, score_hidden
from trainers.model.policy import DTYPES


def naive(hidden_KD: torch.Tensor, head: torch.nn.Linear, targets_K: torch.Tensor, temperature: float) -> TokenScores:
    """The plain way: cross-entropy of the logits of all tokens."""
    logits_KV = head(hidden_KD).float() / temperature
    logprobs_K = -torch.nn.functional.cross_entropy(logits_KV, targets_K, reduction="none")
    with torch.no_grad():
        logprobs_KV = logits_KV.log_softmax(dim=-1)
        entropy_K = -(logprobs_KV.exp() * logprobs_KV).sum(dim=-1)
    return TokenScores(logprobs_K, entropy_K)


def bare(hidden_KD: torch.Tensor, head: torch.nn.Linear, targets_K: torch.Tensor, temperature: float) -> TokenScores:
    """The thriftiest plain way: no entropy, and no second copy of the logits beside their log-softmax."""
    logprobs_K = -torch.nn.functional.cross_entropy(head(hidden_KD).div_(temperature), targets_K, reduction="none")
    return TokenScores(logprobs_K, torch.zeros_like(logprobs_K))


PATHS = {"chunked": score_hidden, "rounded": partial(score_hidden, rounded=True), "bare": bare, "naive": naive}


def run(path: str, tokens: int, vocabulary: int, width: int, device: torch.device, dtype: torch.dtype) -> None:
    """Do one path in this process; print its seconds and its peak in MiB."""
    torch.manual_seed(0)
    hidden_KD = torch.randn(tokens, width, requires_grad=True, device=device, dtype=dtype)
    head = torch.nn.Linear(width, vocabulary, bias=False, device=device, dtype=dtype)
    targets_K = torch.randint(vocabulary, (tokens,), device=device)
    seconds = []
    for _ in range(2 if path != "inputs" and device.type == "cuda" else 1):
        hidden_KD.grad = head.weight.grad = None
        begin = time.perf_counter()
        if path != "inputs":
            PATHS[path](hidden_KD, head, targets_K, 0.9).logprobs_K.mean().backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - begin)
    print(seconds[-1], peak_memory_gib(device) * 1024)


def measure(path: str, sizes: list[str]) -> tuple[float, float]:
    """Seconds and peak MiB of one path in a fresh process; on a GPU of the second time, when kernels are loaded."""
    command = [sys.executable, "-m", "benchmarks.logprob_memory", "--alone", "--path", path, *sizes]
    seconds, mib = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(seconds), float(mib)


def main() -> None:
    """Measure every path that was asked for and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--vocabulary", type=int, default=150_000)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="float32")
    parser.add_argument("--path", nargs="+", choices=[*PATHS, "inputs"], default=["chunked", "bare"])
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        device, dtype = torch.device(options.device), DTYPES[options.dtype]
        run(options.path[0], options.tokens, options.vocabulary, options.width, device, dtype)
        return
    sizes = [f"--{name}={getattr(options, name)}" for name in ("tokens", "vocabulary", "width", "device", "dtype")]
    _, inputs_mib = measure("inputs", sizes)
    print(
        f"{options.tokens} tokens, vocabulary {options.vocabulary}, width {options.width}; inputs {inputs_mib:.0f} MiB"
    )
    for path in options.path:
        seconds, mib = measure(path, sizes)
        print(f"{path:8} {mib - inputs_mib:8.0f} MiB above the inputs, {seconds:6.1f} s")


if __name__ == "__main__":
    main()
