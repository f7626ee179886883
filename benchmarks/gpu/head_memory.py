"""Memory of the output layer: logprobs chunk by chunk beside all logits at once (`benchmarks/logprob_memory.py`)."""

from benchmarks.gpu.setting import finish, options
from benchmarks.logprob_memory import PATHS, measure


def main() -> None:
    asked = options()
    size = asked.size
    tokens = size.tokens // 2
    sizes = [f"--tokens={tokens}", f"--vocabulary={size.vocabulary}", f"--width={size.width}"]
    sizes += [f"--device={asked.device}", "--dtype=float32"]
    _, inputs_mib = measure("inputs", sizes)
    figures: dict[str, float] = {"tokens": tokens, "vocabulary": size.vocabulary, "inputs_mib": inputs_mib}
    for path in PATHS:
        seconds, mib = measure(path, sizes)
        figures |= {f"{path}_mib": mib - inputs_mib, f"{path}_s": seconds}
    less = asked.device == "cpu" or figures["chunked_mib"] < figures["bare_mib"]
    finish(figures, "" if less else "the chunked path needs more memory than all logits at once")


if __name__ == "__main__":
    main()
