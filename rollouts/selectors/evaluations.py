"""Reads of evaluations: what each found, from its rows; how two of the same problems differ; which runs have any."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

from django.contrib.auth.models import AnonymousUser, User
from django.db import connection
from django.db.models import Exists, OuterRef, QuerySet

from environments import estimates, registry
from environments.figures import PlayedProblem, summarise
from rollouts.errors import Conflict, NotFound
from rollouts.models import Evaluation, Purpose, Role, Rollout, Run, RunKind
from rollouts.selectors import runs
from rollouts.sql import load
from rollouts.states import EvaluationState

_FEW = 20
"""Problems of which a bootstrap says too little."""


class _Row(NamedTuple):
    """Of `sql/evaluated_problems.sql`."""

    problem_index: int
    problem_key: str
    environment_version: str
    scores: list[float]
    rollouts: int
    tokens: int
    truncated: int
    out_of_turns: int
    errors: list[str]

    @property
    def played(self) -> PlayedProblem:
        return PlayedProblem(
            scores=self.scores,
            rollouts=self.rollouts,
            tokens=self.tokens,
            truncated=self.truncated,
            out_of_turns=self.out_of_turns,
            errors=self.errors,
        )


@dataclass(frozen=True)
class Difference:
    """How much better the second of two evaluations is, over the problems that both have a score of."""

    first: Evaluation
    second: Evaluation
    estimate: estimates.Estimate | None
    """Of the mean reward, pair by pair; None: they share no problem."""
    pairs: int
    only_first: int
    """Problems with a score in the first alone."""
    only_second: int
    better: int
    worse: int
    caution: str
    """Why the figures may say something else than how good the policies are; empty: nothing speaks against them."""


def for_user(user: User | AnonymousUser, at_least: Role = Role.VIEWER) -> QuerySet[Evaluation]:
    """The evaluations of runs that the user may see."""
    return with_relations(Evaluation.objects.filter(run__in=runs.for_user(user, at_least)))


def with_relations(evaluations: QuerySet[Evaluation]) -> QuerySet[Evaluation]:
    """What is said of an evaluation names its run and its environment."""
    return evaluations.select_related("run__project", "run__model", "run__forked_from__run", "environment")


def evaluated_runs(user: User | AnonymousUser) -> QuerySet[Run]:
    """The runs that evaluate, or have, of those the user may see; newest first."""
    has_any = Exists(Evaluation.objects.filter(run=OuterRef("pk")))
    seen = runs.with_relations(runs.for_user(user)).select_related("forked_from__run")
    return (seen.filter(kind=RunKind.EVAL) | seen.filter(has_any)).order_by("-id")


def of_runs(found: Iterable[Run]) -> dict[int, list[Evaluation]]:
    """Run id -> its evaluations, by environment and version. One query."""
    by_run: dict[int, list[Evaluation]] = {run.pk: [] for run in found}
    rows = Evaluation.objects.filter(run__in=by_run).select_related("environment")
    for row in rows.order_by("environment__name", "version"):
        by_run[row.run_id].append(row)
    return by_run


def get(user: User | AnonymousUser, number: int) -> Evaluation:
    """One evaluation. Raises NotFound if the user may not see it."""
    found = for_user(user).filter(pk=number).first()
    if found is None:
        raise NotFound(f"There is no evaluation {number}, or you may not see it.")
    return found


def figures(evaluation: Evaluation) -> dict[str, Any] | None:
    """avg, pass@k, pass^k with their intervals, truncation, errors, tokens; None before a problem is settled.

    One query over all its rollouts: what is closed has them stored (`Evaluation.figures`).
    """
    played = [row.played for row in _rows(evaluation)]
    plan = evaluation.run.parsed.evaluation
    return summarise(played, threshold=plan.threshold if plan else 1.0) if played else None


def below(run: Run, reward: float) -> int:
    """Rollouts of a run's evaluations that were scored lower."""
    return Rollout.objects.filter(group__run=run, group__purpose=Purpose.EVAL, reward__lt=reward).count()


def compare(first: Evaluation, second: Evaluation) -> Difference:
    """The paired difference, problem by problem. Raises Conflict for problems that are not the same. Two queries."""
    if _problems_of(first) != _problems_of(second):
        raise Conflict("They are of different environments, arguments or splits: no problem of one is in the other.")
    before, after = _by_problem(first), _by_problem(second)
    shared = [key for key in before if key in after]
    pairs = [(before[key].scores, after[key].scores) for key in shared]
    gains = [_mean(second_scores) - _mean(first_scores) for first_scores, second_scores in pairs]
    return Difference(
        first=first,
        second=second,
        estimate=estimates.difference(*zip(*pairs, strict=True)) if pairs else None,
        pairs=len(pairs),
        only_first=len(before) - len(shared),
        only_second=len(after) - len(shared),
        better=sum(gain > 0 for gain in gains),
        worse=sum(gain < 0 for gain in gains),
        caution=_caution(first, second, [*before.values(), *after.values()], pairs=len(pairs)),
    )


def _by_problem(evaluation: Evaluation) -> dict[tuple[str | int, int], _Row]:
    """What was scored, by the problem and by how many times it came before: its place in a split changes when problems
    are added, and it may come twice."""
    times: Counter[str | int] = Counter()
    found = {}
    for row in _rows(evaluation):
        problem = row.problem_key or row.problem_index
        if row.scores:
            found[problem, times[problem]] = row
        times[problem] += 1
    return found


def _rows(evaluation: Evaluation) -> list[_Row]:
    with connection.cursor() as cursor:
        cursor.execute(load("evaluated_problems"), {"evaluation_id": evaluation.pk})
        return [_Row(*row) for row in cursor.fetchall()]


def _problems_of(evaluation: Evaluation) -> tuple[Any, ...]:
    """Which problems it plays: two with the same play the same ones."""
    config = evaluation.run.parsed
    names = {ref.run_name: ref.name for ref in config.environments}
    name = evaluation.environment.name
    return names.get(name, name), evaluation.environment.args, config.evaluation.split if config.evaluation else "eval"


def _caution(first: Evaluation, second: Evaluation, rows: list[_Row], *, pairs: int) -> str:
    states, versions = {first.state, second.state}, {row.environment_version for row in rows}
    served = {_serving(first), _serving(second)} - {None}  # what an endpoint does nobody here knows
    few = f"Of so few problems as the {pairs} in both, the interval is too narrow."
    both = (first, second)
    faults = {
        "One of them is still being played.": EvaluationState.PLAYING in states,
        "One of them ended before all of its problems were played.": EvaluationState.EXPIRED in states,
        "They were scored by different versions of the environment.": len(versions) > 1,
        "Their opponents or judges were not the same.": _others(first) != _others(second),
        "They were sampled differently: temperature, tokens or turns.": _sampling(first) != _sampling(second),
        "They were served differently: context length or quantization.": len(served) > 1,
        "The policy had all seats: where one wins what another loses, that is its mean.": any(map(_plays_itself, both)),
        few: 0 < pairs < _FEW,
    }
    return " ".join(fault for fault, is_so in faults.items() if is_so)


def _plays_itself(evaluation: Evaluation) -> bool:
    ref = evaluation.run.parsed.environment(evaluation.environment.name)
    return ref is not None and 1 < len(ref.own_seats) == len(ref.seating)


def _others(evaluation: Evaluation) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Who has which seat, and what answers those of the policies that its environment asks, as far as that is known."""
    config = evaluation.run.parsed
    ref = config.environment(evaluation.environment.name)
    if ref is None:
        return {}, []
    is_known = registry.is_built_in(ref.name) and not registry.rewards_from_elsewhere(ref.name, ref.args)
    asked = {*ref.seating.values(), *registry.policies_of(ref.name, ref.args).values()}
    start = {"model": config.model.lora.path or config.model.path}
    policies = [policy for policy in config.policies if policy.name in asked or not is_known]
    answering = [policy.model_dump(exclude={"replicas"}) | (start if policy.is_start else {}) for policy in policies]
    return ref.seating, sorted(answering, key=itemgetter("name"))


def _sampling(evaluation: Evaluation) -> tuple[float | int | None, ...]:
    config = evaluation.run.parsed
    plan, sampling = config.evaluation, config.sampling_of(evaluation.environment.name)
    return plan.temperature if plan else None, sampling.max_tokens, sampling.max_turns


def _serving(evaluation: Evaluation) -> tuple[int, str] | None:
    """None for an endpoint."""
    config = evaluation.run.parsed
    return None if config.model.endpoint else (config.inference.max_model_len, config.inference.quantization)


def _mean(scores: list[float]) -> float:
    return sum(scores) / len(scores)


def told(evaluation: Evaluation) -> dict[str, Any]:
    """An evaluation as programs read it."""
    return {
        "evaluation": evaluation.pk,
        "environment": evaluation.environment.name,
        "version": evaluation.version,
        "measured_first": evaluation.min_policy_version,
        "measured_last": evaluation.max_policy_version,
        "state": str(evaluation.state),
        "reason": evaluation.state_reason,
        "problems": evaluation.problems,
        "handed_out": evaluation.cursor,
        "reward_mean": evaluation.reward_mean,
        "figures": evaluation.figures,
        "created_at": evaluation.created_at.isoformat(),
        "finished_at": evaluation.finished_at.isoformat() if evaluation.finished_at else None,
    }


def told_difference(found: Difference) -> dict[str, Any]:
    """A comparison as programs read it."""
    return {
        "first": found.first.pk,
        "second": found.second.pk,
        "difference": found.estimate._asdict() if found.estimate else None,
        "pairs": found.pairs,
        "only_first": found.only_first,
        "only_second": found.only_second,
        "better": found.better,
        "worse": found.worse,
        "caution": found.caution,
    }
