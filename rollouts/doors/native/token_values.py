"""What the optimizer saw of the tokens of some rollouts: which there are, and one of them."""

from typing import Any

import msgspec
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from rollouts.doors.native import wire
from rollouts.doors.native.access import get_run
from rollouts.formats.json_arrays import decimals
from rollouts.models import Scope, TokenValues
from rollouts.selectors import token_values
from trainers.wire import MaskReason


class SeenRolloutOut(msgspec.Struct, kw_only=True):
    """A rollout whose values a step has."""

    id: int
    """What to ask for its values with."""
    step: int
    group: str
    index: int
    token_count: int


class StepTokenValuesOut(msgspec.Struct):
    rollouts: list[SeenRolloutOut]


class TokenValuesOut(SeenRolloutOut, kw_only=True):
    """Lists have the rollout's length; null where a token has no such value."""

    token_ids: list[int]
    texts: list[str] | None
    inference_logprobs: list[float | None]
    trainer_logprobs: list[float | None]
    entropies: list[float | None]
    ratios: list[float | None]
    advantages: list[float | None]
    mask_reasons: list[str]
    """`trained`, or why not or not fully: names of `trainers.wire.MaskReason`."""
    branch_lengths: list[int]
    """Tokens of each branch, in the order in which they lie end to end; one number unless history was edited."""


class StepTokenValuesApi(APIView):
    """`/runs/<key>/steps/<step>/token-values`"""

    @extend_schema(operation_id="listTokenValues", responses=wire.answer(StepTokenValuesOut))
    def get(self, request: Request, key: str, step: int) -> Response:
        """The rollouts of a step whose values per token its trainer sent, in batch order."""
        run = get_run(request, key, Scope.READ)
        rows = token_values.of_step(run, step)
        return Response(wire.json(StepTokenValuesOut([SeenRolloutOut(**_fields(row)) for row in rows])))


class TokenValuesApi(APIView):
    """`/runs/<key>/token-values/<number>`"""

    @extend_schema(operation_id="readTokenValues", responses=wire.answer(TokenValuesOut))
    def get(self, request: Request, key: str, number: int) -> Response:
        """What the optimizer saw of one rollout, token by token, before the step moved the weights."""
        run = get_run(request, key, Scope.READ)
        seen = token_values.get(run, number)
        out = TokenValuesOut(
            **_fields(seen.row),
            token_ids=seen.token_ids.tolist(),
            texts=seen.texts,
            inference_logprobs=decimals(seen.inference_logprobs),
            trainer_logprobs=decimals(seen.trainer_logprobs),
            entropies=decimals(seen.entropies),
            ratios=decimals(seen.ratios),
            advantages=decimals(seen.advantages),
            mask_reasons=[MaskReason(number).name.lower() for number in seen.mask_reasons.tolist()],
            branch_lengths=seen.branch_lengths,
        )
        return Response(wire.json(out))


def _fields(row: TokenValues) -> dict[str, Any]:
    rollout = row.rollout
    return {
        "id": row.pk,
        "step": row.batch.step,
        "group": rollout.group.key,
        "index": rollout.index,
        "token_count": rollout.token_count,
    }
