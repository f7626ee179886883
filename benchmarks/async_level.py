"""Does generation overlap with training? The same RL run with max_async_level 2 and 0, in pairs, on this machine.

    python -m benchmarks.async_level --pairs 2 --steps 30

Needs a running `rollyard up` on ROLLYARD_HOME. Prints one JSON object: seconds from the first batch formed to the last
step acknowledged, medians with minimum and maximum, the ratio, and how far the policy was from the one that sampled.
"""

import json

from benchmarks import pairs

_KINDS = {
    f"max_async_level={level}": [
        f"algorithm.max_async_level={level}",
        "evaluation=null",
        f"name=async-level-{level}",
    ]
    for level in (2, 0)
}


def main() -> None:
    options = pairs.parser(__doc__, pairs=2, steps=30).parse_args()
    found = pairs.measure(options, _KINDS)
    figures = {figure: pairs.compared(found, figure) for figure in ("training_s", "run_s")}
    kl = {kind: [summary["mismatch_kl_mean"] for summary in of] for kind, of in found.items()}
    print(json.dumps({"steps": options.steps, **figures, "mismatch_kl_mean": kl, "machine": pairs.machine()}))


if __name__ == "__main__":
    main()
