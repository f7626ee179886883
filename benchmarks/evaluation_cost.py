"""What does evaluation inside a run cost? The demo's RL run with none and with one every 10 steps, in pairs.

    python -m benchmarks.evaluation_cost --pairs 3 --steps 50

Needs a running `rollyard up` on ROLLYARD_HOME. Prints one JSON object: seconds from a run's launch to its end, and of
its training phase, medians with minimum and maximum, and the ratios.
"""

import json

from benchmarks import pairs

_KINDS = {
    "without": ["evaluation=null", "name=evaluation-without"],
    "every 10 steps": ["evaluation.every=10", "name=evaluation-every-10"],
}


def main() -> None:
    options = pairs.parser(__doc__, pairs=3, steps=50).parse_args()
    found = pairs.measure(options, _KINDS)
    figures = {figure: pairs.compared(found, figure) for figure in ("run_s", "training_s")}
    print(json.dumps({"steps": options.steps, "pairs": options.pairs, **figures, "machine": pairs.machine()}))


if __name__ == "__main__":
    main()
