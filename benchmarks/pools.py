"""Do problems that teach save steps? An example's RL run with pools off and on, in turn, until it has learned.

    python -m benchmarks.pools reverse-text --target 0.85 --seeds 1 2 3 4 5

Every seed has a warmed-up model of its own, which both of its runs start from. A run is stopped once the mean reward of
an evaluation reaches --target. Prints each run and one JSON object at the end: steps, generated tokens and the share of
generated groups whose rewards are all equal, for each run; the median over the seeds of the steps with pools on over
those with pools off; how much of the share is left.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.examples import EXAMPLES, in_own_home, warm_up
from controlplane.cli import lessons
from controlplane.cli.lessons import say

ON = [
    "environments.0.problems=2000",
    "environments.0.pools={easy_from = 0.85, hard_to = 0.05, new_share = 0.3, hard_share = 0.1, memory = 0.0}",
    "algorithm.filters={all_solved = true, min_reward_range = 0.2}",
]
"""What pools on means beside the preset."""
_POLL_S = 2.0
_EQUAL = 1e-9


class Learned(NamedTuple):
    """How a run came to the target."""

    run: str
    steps: int | None
    """The first evaluated version with the target; None: it ended without."""
    tokens: int
    """Sampled until then, in groups of any fate."""
    groups: int
    without_signal: float
    """Share of the groups generated until then whose rewards are all equal."""
    trained_without_signal: float
    """The same of the groups that were trained."""
    rewards: dict[int, float]
    """Version -> reward of its evaluation."""


def learn(name: str, seed: int, overrides: list[str], options: argparse.Namespace) -> Learned:
    """Train until an evaluation reaches the target, or to the end. Raises NotDone."""
    from rollouts.models import MetricPoint
    from rollouts.services.runs import life

    plan = [
        f"seed={seed}",
        f"evaluation.every={options.every}",
        "evaluation.problems=256",
        f"max_steps={options.steps}",
    ]
    run = lessons.launch(lessons.resolved(EXAMPLES / name / "rl.toml", [*plan, *overrides]), actor="pools")
    key = f"eval/{run.parsed.environments[0].run_name}/reward"
    while True:
        rewards = dict(MetricPoint.objects.filter(run=run, key=key).order_by("step").values_list("step", "value"))
        reached = next((version for version, reward in sorted(rewards.items()) if reward >= options.target), None)
        run.refresh_from_db()
        if reached is not None or run.is_over:
            break
        time.sleep(_POLL_S)
    if not run.is_over:
        life.request_stop(run, actor="benchmark")
        while not run.is_over:
            time.sleep(_POLL_S)
            run.refresh_from_db()
    return account(run, reached, rewards)


def account(run: Any, reached: int | None, rewards: dict[int, float]) -> Learned:
    """What it took to make version ``reached``: everything that was scored before its last batch was formed."""
    from django.db.models import Avg, Case, Count, FloatField, Sum, When

    from rollouts.models import Batch, Purpose, Rollout, ScoredGroup

    last = Batch.objects.filter(run=run, step__lt=reached or run.max_steps).order_by("-step").first()
    groups = ScoredGroup.objects.filter(run=run, purpose=Purpose.TRAIN, scored_count__gt=0)
    groups = groups.filter(settled_at__lte=last.formed_at)
    equal = Avg(Case(When(reward_std__lt=_EQUAL, then=1.0), default=0.0, output_field=FloatField()))
    generated = groups.aggregate(groups=Count("pk"), equal=equal)
    trained = groups.filter(batch_items__batch__step__lt=reached or run.max_steps).aggregate(equal=equal)
    tokens = Rollout.objects.filter(group__in=groups).aggregate(tokens=Sum("trained_token_count"))
    return Learned(
        run.key, reached, tokens["tokens"], generated["groups"], generated["equal"], trained["equal"], rewards
    )


def main() -> int:
    options = _parser().parse_args()
    return _compare(options) if options.job else in_own_home("pools", keep=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of the example")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--target", type=float, default=0.85)
    parser.add_argument("--every", type=int, default=4, help="versions between evaluations")
    parser.add_argument("--steps", type=int, default=100, help="at most")
    parser.add_argument("--only", choices=["off", "on"], help="to try settings")
    parser.add_argument("--both", action="append", default=[], metavar="KEY=VALUE", help="for runs of both sides")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for runs with pools on")
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    return parser


def _compare(options: argparse.Namespace) -> int:
    import django

    django.setup()
    found: dict[str, dict[int, Learned]] = {"off": {}, "on": {}}
    for at, seed in enumerate(options.seeds):
        warm_up(options.name, seed, [f"seed={seed}"], options.job)
        sides = [options.only] if options.only else ["off", "on"] if at % 2 == 0 else ["on", "off"]
        for side in sides:
            overrides = [f"name=pools-{side}-{seed}", *options.both, *((ON + options.set) if side == "on" else [])]
            result = learn(options.name, seed, overrides, options)
            found[side][seed] = result
            say(f"seed {seed}, pools {side}: {result}")
    say(json.dumps(report(found) | {"machine": {"cpus": os.cpu_count(), "platform": platform.platform()}}))
    return 0


def report(found: dict[str, dict[int, Learned]]) -> dict[str, Any]:
    """All runs, and the comparison over the seeds that have both."""
    runs = {side: {seed: result._asdict() for seed, result in of.items()} for side, of in found.items()}
    pairs = [(found["off"][seed], on) for seed, on in found["on"].items() if seed in found["off"]]
    if not pairs:
        return {"runs": runs}
    ratios = [on.steps / off.steps if on.steps and off.steps else float("inf") for off, on in pairs]
    return {
        "runs": runs,
        "steps_ratio": statistics.median(ratios),
        "tokens_ratio": statistics.median(on.tokens / off.tokens for off, on in pairs),
        "without_signal_ratio": statistics.median(
            on.without_signal / off.without_signal if off.without_signal else float("inf") for off, on in pairs
        ),
    }


if __name__ == "__main__":
    sys.exit(main())
