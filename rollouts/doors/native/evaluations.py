"""Read what runs measured, and how much better one evaluation is than another."""

from typing import Any

import msgspec
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from rollouts.doors.native import wire
from rollouts.doors.native.access import get_run, list_runs
from rollouts.doors.native.runs import integer
from rollouts.errors import Invalid, NotFound
from rollouts.models import Evaluation, Scope
from rollouts.selectors import evaluations


class EvaluationOut(msgspec.Struct, kw_only=True):
    """Problems of one environment, played on a policy version, or on those that came meanwhile."""

    evaluation: int
    environment: str
    version: int
    """For which it was opened."""
    measured_first: int | None
    """Oldest policy version that gave a reply; null before any did."""
    measured_last: int | None
    state: str
    reason: str
    """A sentence for people; empty when there is none."""
    problems: int
    handed_out: int
    """Problems that were begun."""
    reward_mean: float | None
    figures: dict[str, Any] | None
    """A moment after it is closed: avg@k, pass@k and pass^k with the interval of each, truncation, errors, tokens."""
    created_at: str
    finished_at: str | None


class EvaluationsOut(msgspec.Struct, kw_only=True):
    """By environment and version."""

    evaluations: list[EvaluationOut]


class ComparisonOut(msgspec.Struct, kw_only=True):
    """How much better the second is, over the problems that both have a score of."""

    first: int
    second: int
    difference: dict[str, float] | None
    """`value`, `low` and `high` of the mean reward, pair by pair; null: they share no problem."""
    pairs: int
    only_first: int
    only_second: int
    better: int
    worse: int
    caution: str
    """Why it may say something else than how good the policies are; empty: nothing speaks against it."""


class EvaluationsApi(APIView):
    """What one run measured. A run of kind `eval` measures alone: launch it as any other."""

    @extend_schema(operation_id="listEvaluations", responses=wire.answer(EvaluationsOut))
    def get(self, request: Request, key: str) -> Response:
        """List the evaluations of a run, by environment and version."""
        run = get_run(request, key, Scope.READ)
        return Response({"evaluations": [evaluations.told(row) for row in evaluations.of_runs([run])[run.pk]]})


class ComparisonApi(APIView):
    """Two evaluations, pair by pair."""

    @extend_schema(
        operation_id="compareEvaluations",
        parameters=[OpenApiParameter("first", int, required=True), OpenApiParameter("second", int, required=True)],
        responses=wire.answer(ComparisonOut),
    )
    def get(self, request: Request) -> Response:
        """Compare two evaluations of the same problems, of whatever runs."""
        numbers = [number for name in ("first", "second") if (number := integer(request, name)) is not None]
        if len(numbers) < 2:
            raise Invalid("Name two evaluations.", fields={"first": "is required", "second": "is required"})
        visible = Evaluation.objects.filter(pk__in=numbers, run__in=list_runs(request, Scope.READ))
        rows = {row.pk: row for row in evaluations.with_relations(visible)}
        for number in numbers:
            if number not in rows:
                raise NotFound(f"There is no evaluation {number}, or you may not see it.")
        first, second = (rows[number] for number in numbers)
        return Response(evaluations.told_difference(evaluations.compare(first, second)))
