"""Does every objective learn? The same RL run with one loss after another, from the same weights, on this machine.

    python -m benchmarks.objectives --model DIRECTORY --steps 100

Needs a running `rollyard up` on ROLLYARD_HOME, and a warmed-up model such as the supervised run of `make demo` leaves
(`runs/<key>/weights/step_<n>`). Prints a Markdown table, then one JSON object. Reward is on held-out problems, before
and after; the preset says how many and how they are sampled.
"""

import argparse
import json
from typing import Any

from benchmarks.pairs import rollyard

LOSSES = ("aipo", "grpo", "gspo", "opo", "rloo", "cispo")
COLUMNS = {
    "loss": "loss",
    "eval_reward_before": "before",
    "eval_reward_after": "after",
    "max_lag": "max lag",
    "mismatch_kl_mean": "mismatch KL",
    "training_s": "training s",
}


def learn(loss: str, options: argparse.Namespace) -> dict[str, Any]:
    """The summary of one run."""
    launched = rollyard(
        "launch",
        "reverse-text-rl",
        f"model.path={options.model}",
        f"max_steps={options.steps}",
        f"seed={options.seed}",
        f"algorithm.loss.type={loss}",
        f"evaluation.every={options.steps}",
        f"name=objective-{loss}",
        *options.overrides,
        "--json",
    )
    run = json.loads(launched.splitlines()[0])["run"]
    rollyard("runs", "wait", run, "--quiet")
    return {"loss": loss} | json.loads(rollyard("runs", "summary", run, "--json"))


def row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="directory of the weights that every run starts from")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--losses", nargs="+", default=LOSSES, metavar="LOSS")
    parser.add_argument("overrides", nargs="*", help="key=value for every run")
    options = parser.parse_args()
    print(row(list(COLUMNS.values())))
    print(row(["---"] * len(COLUMNS)))
    results = []
    for loss in options.losses:
        result = learn(loss, options)
        results.append({name: result.get(name) for name in COLUMNS})
        print(row([shown(result.get(name)) for name in COLUMNS]), flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
