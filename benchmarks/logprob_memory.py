"""Peak memory of the logprobs of trained tokens, forward and backward: chunk by chunk beside all logits at once.

    python -m benchmarks.logprob_memory [--tokens 8192] [--vocabulary 150000] [--width 256] [--path chunked bare naive]

Each path runs in a process of its own, because a process's peak never falls; the peak of a third one that only makes
the inputs is subtracted. The naive path does what ours does: logprobs and entropies. The bare one has no entropy and
scales in place: nothing that holds all logits needs less. At the default size the naive path needs about 25 GB.
"""

import argparse
import resource
import subprocess
import sys
import time

import torch

from trainers.model.lm_head import TokenScores, score_hidden


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


PATHS = {"chunked": score_hidden, "bare": bare, "naive": naive}


def run(path: str, tokens: int, vocabulary: int, width: int) -> None:
    """Do one path in this process; print its seconds and its peak in MiB."""
    torch.manual_seed(0)
    hidden_KD = torch.randn(tokens, width, requires_grad=True)
    head = torch.nn.Linear(width, vocabulary, bias=False)
    begin = time.perf_counter()
    if path != "inputs":
        PATHS[path](hidden_KD, head, torch.randint(vocabulary, (tokens,)), 0.9).logprobs_K.mean().backward()
    print(time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def measure(path: str, sizes: list[str]) -> tuple[float, float]:
    """Seconds and peak MiB of one path in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.logprob_memory", "--alone", "--path", path, *sizes]
    seconds, mib = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(seconds), float(mib)


def main() -> None:
    """Measure every path that was asked for and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--vocabulary", type=int, default=150_000)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--path", nargs="+", choices=[*PATHS, "inputs"], default=["chunked", "bare"])
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        run(options.path[0], options.tokens, options.vocabulary, options.width)
        return
    sizes = [f"--{name}={getattr(options, name)}" for name in ("tokens", "vocabulary", "width")]
    _, inputs_mib = measure("inputs", sizes)
    print(
        f"{options.tokens} tokens, vocabulary {options.vocabulary}, width {options.width}; inputs {inputs_mib:.0f} MiB"
    )
    for path in options.path:
        seconds, mib = measure(path, sizes)
        print(f"{path:8} {mib - inputs_mib:8.0f} MiB above the inputs, {seconds:6.1f} s")


if __name__ == "__main__":
    main()
