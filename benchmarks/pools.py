"""Do problems that teach save steps? An example's RL run with pools off and on, in turn, until it has learned.

    python -m benchmarks.pools reverse-text --target 0.85 --seeds 1 2 3 4 5

Every seed has a warmed-up model of its own, which both of its runs start from. With --known its warm-up has only right
answers to half of the problems, and of those that the runs play --known-share are such: they have nothing left to
teach. Held out are problems of the example itself. A run is stopped once the mean reward of an evaluation reaches
--target. Prints each run and one JSON object at the end: steps, generated tokens and the share of generated groups
whose rewards are all equal, for each run; how many runs of each side ended without the target; and over the seeds of
which both runs reached it, medians of the steps and tokens with pools on over those with pools off, and of how much of
the share is left. The exit status is 1 if a run was not done.
"""

import argparse
import itertools
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.examples import EXAMPLES, held_out, in_own_home, measured, warm_up
from controlplane.cli import lessons
from controlplane.cli.lessons import say

ON = [
    "environments.0.problems=2000",
    "environments.0.pools={easy_from = 0.85, hard_to = 0.05, new_share = 0.3, hard_share = 0.1, memory = 0.0}",
    "algorithm.filters={all_solved = true, min_reward_range = 0.2}",
]
"""What pools on means beside the preset."""
_POLL_S = 2.0
_PROBLEMS = 2000
"""Of each split, where some are known."""
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
    from rollouts.services.runs import life

    plan = [
        f"seed={seed}",
        f"evaluation.every={options.every}",
        "evaluation.problems=256",
        f"max_steps={options.steps}",
    ]
    run = lessons.launch(lessons.resolved(EXAMPLES / name / "rl.toml", [*plan, *overrides]), actor="pools")
    while True:
        run.refresh_from_db()
        rewards = measured(run)
        reached = next((version for version, reward in sorted(rewards.items()) if reward >= options.target), None)
        if reached is not None or run.is_over:
            break
        time.sleep(_POLL_S)
    if reached is None:
        held_out(run)  # one that failed has not ended without the target
    if not run.is_over:
        life.request_stop(run, actor="benchmark")
        while not run.is_over:
            time.sleep(_POLL_S)
            run.refresh_from_db()
    if reached == 0:
        raise lessons.NotDone(f"run {run.key} began with the target: raise --target")
    return account(run, reached, rewards)


def account(run: Any, reached: int | None, rewards: dict[int, float]) -> Learned:
    """What it took to make version ``reached``: everything that was scored before its last batch was formed."""
    from django.db.models import Avg, Case, Count, FloatField, Sum, When

    from rollouts.models import Batch, Purpose, Rollout, ScoredGroup

    steps = run.max_steps if reached is None else reached
    last = Batch.objects.filter(run=run, step__lt=steps).order_by("-step").first()
    groups = ScoredGroup.objects.filter(run=run, purpose=Purpose.TRAIN, scored_count__gt=0)
    groups = groups.filter(settled_at__lte=last.formed_at)
    equal = Avg(Case(When(reward_std__lt=_EQUAL, then=1.0), default=0.0, output_field=FloatField()))
    generated = groups.aggregate(groups=Count("pk"), equal=equal)
    trained = groups.filter(batch_items__batch__step__lt=steps).aggregate(equal=equal)
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
    parser.add_argument("--warm-up", action="append", default=[], metavar="KEY=VALUE", help="for the warm-up of both")
    parser.add_argument("--both", action="append", default=[], metavar="KEY=VALUE", help="for runs of both sides")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for runs with pools on")
    parser.add_argument(
        "--known", type=json.loads, default={}, metavar="JSON", help="arguments of problems that the warm-up solves"
    )
    parser.add_argument(
        "--flawed", type=json.loads, default={}, metavar="JSON", help="arguments of those that it repeats at times"
    )
    parser.add_argument("--known-share", type=float, default=0.85, help="of what is played")
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    return parser


def _compare(options: argparse.Namespace) -> int:
    import django

    django.setup()
    found: dict[str, dict[int, Learned]] = {"off": {}, "on": {}}
    status = 0
    for at, seed in enumerate(options.seeds):
        sides = [options.only] if options.only else ["off", "on"] if at % 2 == 0 else ["on", "off"]
        try:
            known = _known(seed, options) if options.known else Known([], [])
            warm_up(options.name, seed, [f"seed={seed}", *options.warm_up, *known.warm_up], options.job)
            for side in sides:
                overrides = [
                    f"name=pools-{side}-{seed}",
                    *known.play,
                    *options.both,
                    *((ON + options.set) if side == "on" else []),
                ]
                found[side][seed] = learn(options.name, seed, overrides, options)
                say(f"seed {seed}, pools {side}: {found[side][seed]}")
        except lessons.NotDone as reason:
            say(f"seed {seed}: {reason}")
            status = 1
    say(json.dumps(report(found) | {"machine": {"cpus": os.cpu_count(), "platform": platform.platform()}}))
    return status


class Known(NamedTuple):
    """What half of the problems being known from the start means beside the presets."""

    warm_up: list[str]
    play: list[str]


def _known(seed: int, options: argparse.Namespace) -> Known:
    """Write the examples of the warm-up, in turn a problem of --known, solved, and one of --flawed, at times repeated;
    and what the runs play and are measured by."""
    from environments import registry
    from environments.solutions import solved
    from environments.types import Split

    config = lessons.resolved(EXAMPLES / options.name / "sft.toml", [f"seed={seed}", *options.warm_up]).config
    [played] = config.environments
    kinds = [played.args | options.known, played.args | options.flawed]
    directory: Path = options.job / f"known-{seed}"
    directory.mkdir()
    count = config.max_steps * config.data.batch_size // 2
    pairs = zip(
        solved(played.name, kinds[0], count), solved(played.name, kinds[1], count, echo=config.data.echo), strict=True
    )
    _write(directory.with_suffix(".jsonl"), itertools.chain.from_iterable(pairs))
    for split, args, numbers in [
        (Split.TRAIN, kinds[0], range(int(options.known_share * _PROBLEMS))),
        (Split.TRAIN, kinds[1], range(int(options.known_share * _PROBLEMS), _PROBLEMS)),
        (Split.EVAL, played.args, range(_PROBLEMS)),
    ]:
        posed = registry.load(played.name, args)
        problems = (posed.problem(split, number) for number in numbers)
        file = directory / ("train.jsonl" if split is Split.TRAIN else "test.jsonl")
        _write(file, ({"text": each.messages[-1].text, "answer": each.data["answer"]} for each in problems))
        system = posed.problem(split, 0).messages[0].text
    directory.chmod(0o755)
    args = f'{{data = "{directory}", prompt = "text", system = {json.dumps(system)}, rewards = [{{name = "fuzzy"}}]}}'
    played_by = f'environments=[{{name = "dataset", args = {args}}}]'
    return Known([f"data.path={directory.with_suffix('.jsonl')}"], [played_by])


def _write(file: Path, rows: Iterable[Any]) -> None:
    with file.open("a") as lines:
        file.chmod(0o644)
        lines.writelines(json.dumps(row) + "\n" for row in rows)


def report(found: dict[str, dict[int, Learned]]) -> dict[str, Any]:
    """All runs, and the comparison over the seeds of which both reached the target."""
    runs = {side: {seed: result._asdict() for seed, result in of.items()} for side, of in found.items()}
    reached = {side: {seed: each for seed, each in of.items() if each.steps is not None} for side, of in found.items()}
    told = {"runs": runs, "without_target": {side: len(of) - len(reached[side]) for side, of in found.items()}}
    pairs = [(reached["off"][seed], on) for seed, on in reached["on"].items() if seed in reached["off"]]
    if not pairs:
        return told
    return told | {
        "pairs": len(pairs),
        "steps_ratio": statistics.median(on.steps / off.steps for off, on in pairs),
        "tokens_ratio": statistics.median(on.tokens / off.tokens for off, on in pairs),
        "without_signal_ratio": statistics.median(
            on.without_signal / off.without_signal if off.without_signal else float("inf") for off, on in pairs
        ),
    }


if __name__ == "__main__":
    sys.exit(main())
