"""The whole check of an environment."""

import asyncio
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

from environments.env import Environment
from environments.kit import problems as about
from environments.kit.hostile import hostile_replies
from environments.kit.playing import RandomPlayer, difference, played, replies_of, some_player
from environments.kit.report import Finding, Report, finding
from environments.solutions import of_problem
from environments.types import Message, PlayedRollout, Problem, Split

_HOSTILE_PROBLEMS = 3
_HOSTILE_TURNS = 16


def check(
    environment: Environment[Any],
    *,
    problems: int = 50,
    margin: float = 0.05,
    seconds: float = 2.0,
    random_player: RandomPlayer | None = None,
) -> Report:
    """Check an environment on the first `problems` of each split. Blocks; not inside an event loop.

    `margin`: the reward by which the solving player has to beat the random one, and hostile replies must not.
    `seconds`: in which an episode of hostile replies has to be played and scored. Without a `random_player` the replies
    are for the most part those that solve another problem, else words of the problem in any order.
    """

    async def checked() -> Report:
        await environment.open()
        report = Report(type(environment).name)
        train, evaluated = (about.first(environment, split, problems) for split in Split)
        report.findings.append(about.encodable([*train, *evaluated]))
        if not report.holds:
            return report  # all else is about what arrives where it is played and scored
        report.findings += about.stable(environment, problems)
        report.findings += about.told_apart(environment)
        report.findings.append(about.hidden(train))
        train = [about.through_json(problem) for problem in train]
        report.findings += await _players(environment, train, margin, random_player or some_player(environment), report)
        report.findings += await _hostile(environment, train[:_HOSTILE_PROBLEMS], margin, seconds, report)
        return report

    return asyncio.run(checked())


async def _players(
    environment: Environment[Any],
    problems: Sequence[Problem],
    margin: float,
    random_player: RandomPlayer,
    report: Report,
) -> list[Finding]:
    """What the random and the solving player get; `report` is told."""
    guessed: list[PlayedRollout] = []
    solved: list[PlayedRollout] = []
    other: list[str] = []
    for problem, seat, solution in _seated(environment, problems):
        replies = random_player(problem, random.Random(f"kit/{problem.key}{seat}"))
        guessed.append(await played(environment, problem, replies, seat=seat))
        if not (replies := replies_of(solution)):
            continue
        rollout = await played(environment, problem, replies, seat=seat, max_turns=len(replies))
        solved.append(rollout)
        if rollout.error is None and (way := difference(rollout, solution)):
            other.append(f"{problem.key}: {way}")
    episodes = [*guessed, *solved]
    broken = [_error(rollout) for rollout in episodes if rollout.error is not None]
    ended = finding(broken, f"All {len(episodes)} episodes end with finite rewards and metrics.", "Episodes fail")
    report.random_reward, report.random_best = _mean_and_best(guessed)
    if not solved:
        none = f"The random player earns {report.random_reward:.3f}; solution() gives nothing to compare it with."
        return [ended, Finding(True, none)]
    report.solving_reward, _ = _mean_and_best(solved)
    earned = f"the solving player earns {report.solving_reward:.3f}, the random one {report.random_reward:.3f}"
    is_better = report.solving_reward >= report.random_reward + margin
    return [
        ended,
        finding([] if is_better else [earned], f"Solving pays: {earned}.", "Solving does not pay"),
        finding(other, "Solutions are the conversations that are played.", "Solutions are not what is played"),
    ]


async def _hostile(
    environment: Environment[Any], problems: Sequence[Problem], margin: float, seconds: float, report: Report
) -> list[Finding]:
    """What hostile replies break, take and get; `report` is told, and knows what the other players got."""
    limit = report.random_best + margin
    if report.solving_reward is not None:  # a lucky guess may earn as much as a solution; nonsense must not
        limit = min(limit, report.solving_reward - margin)
    broken: list[str] = []
    slow: list[str] = []
    paid: list[str] = []
    for problem, seat, (name, reply) in _each(environment, problems):
        began = time.monotonic()
        rollout = await played(environment, problem, [reply], seat=seat, max_turns=_HOSTILE_TURNS)
        took = time.monotonic() - began
        if took > seconds:
            slow.append(f"{name} takes {took:.1f} s")
        if rollout.reward is None:
            broken.append(f"{name}: {_error(rollout)}")
            continue
        report.hostile_best = max(report.hostile_best, rollout.reward)
        if rollout.reward > limit:
            paid.append(f"{name} earns {rollout.reward:.3f}")
    best = f"{report.hostile_best:.3f} at best, {limit:.3f} allowed"
    return [
        finding(broken, "Hostile replies break no episode.", "Hostile replies break episodes"),
        finding(
            slow, f"Hostile replies are answered and scored within {seconds:g} s.", "Hostile replies take too long"
        ),
        finding(paid, f"Hostile replies do not pay ({best}).", f"Hostile replies pay ({best})"),
    ]


def _seated(
    environment: Environment[Any], problems: Sequence[Problem]
) -> Iterator[tuple[Problem, str, Sequence[Message]]]:
    """Each problem for each seat, with what solves it, if anything does."""
    for problem in problems:
        solved = of_problem(environment, problem)
        for seat in environment.seats or ("",):
            yield problem, seat, solved.get(seat, ())


def _each(
    environment: Environment[Any], problems: Sequence[Problem]
) -> Iterator[tuple[Problem, str, tuple[str, Message]]]:
    for problem, seat, solution in _seated(environment, problems):
        for named in hostile_replies(problem, solution or None).items():
            yield problem, seat, named


def _mean_and_best(rollouts: Sequence[PlayedRollout]) -> tuple[float, float]:
    rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None] or [0.0]
    return statistics.fmean(rewards), max(rewards)


def _error(rollout: PlayedRollout) -> str:
    error = rollout.error
    return "no reward" if error is None else f"{error.kind}: {error.type}: {error.message}"
