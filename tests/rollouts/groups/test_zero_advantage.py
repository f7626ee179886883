"""Groups without a gradient are dropped if the run wants it, and no others."""

import struct
from collections.abc import Sequence
from typing import Any

import pytest

from environments.types import PackedRollout, PackedScoredGroup, StopReason
from rollouts.formats.arrays import pack_group
from rollouts.models import ScoredGroup
from rollouts.services.groups import intake
from rollouts.services.runs import life, policies
from rollouts.states import GroupState
from tests import store
from tests.rollouts import story

pytestmark = pytest.mark.django_db

REFERENCE = {"ref_logprobs": [0.0, 0.0, -1.0, -1.0]}


CUT, WHOLE = StopReason.LENGTH, StopReason.STOP
MASKED: dict[str, Any] = {"corrections": {"mask_overlong": True}}
UNTRAINED, TRAINED = (0, 0, 0, 0), (0, 0, 1, 1)


def packed(
    rewards: Sequence[float],
    loss_mask: Sequence[int] = (0, 0, 1, 1),
    *,
    masks: Sequence[Sequence[int]] = (),
    stops: Sequence[StopReason] = (),
    **floats: list[float],
) -> Any:
    """A group of four tokens a rollout, with arrays per token."""
    arrays = {"inference_logprobs": [0.0, 0.0, -0.5, -0.5]} | floats
    rollouts = [
        PackedRollout(
            token_ids=struct.pack("<4I", *range(4)),
            loss_mask=bytes(mask),
            reward=reward,
            stop_reason=stop,
            first_policy_version=0,
            **{name: struct.pack("<4f", *values) for name, values in arrays.items()},
        )
        for reward, mask, stop in zip(
            rewards, masks or [loss_mask] * len(rewards), stops or [WHOLE] * len(rewards), strict=True
        )
    ]
    scored = PackedScoredGroup(environment="reverse_text", problem_key="cat", rollouts=rollouts)
    return pack_group(scored, ("groups", 0))


@pytest.mark.parametrize(
    ("algorithm", "rewards", "fields", "state"),
    [
        ({}, (1.0, 1.0), {}, GroupState.FILTERED),
        ({}, (1.0, 0.0), {}, GroupState.READY),
        ({"loss": {"type": "dppo", "kl_tau": 0.0}}, (1.0, 1.0), {}, GroupState.FILTERED),
        ({"terms": {"echo": 0.1}}, (1.0, 1.0), {}, GroupState.FILTERED),
        ({"terms": {"echo": 0.1}}, (1.0, 1.0), {"loss_mask": (0, 1, 0, 1)}, GroupState.READY),
        ({"terms": {"echo": 0.1}}, (1.0, 1.0), {"loss_mask": (0, 1, 1, 1)}, GroupState.FILTERED),
        ({}, (1.0, 1.0), {"loss_mask": (0, 1, 0, 1)}, GroupState.FILTERED),
        ({"terms": {"distillation": 0.1}}, (1.0, 1.0), {}, GroupState.FILTERED),
        ({"terms": {"distillation": 0.1}}, (1.0, 1.0), REFERENCE, GroupState.READY),
        ({}, (1.0, 1.0), REFERENCE, GroupState.FILTERED),
        ({}, (1.0, 1.0), {"advantages": [0.0, 0.0, 0.5, -0.5]}, GroupState.READY),
        ({}, (1.0, 1.0), {"advantages": [0.5, 0.5, 0.0, 0.0]}, GroupState.FILTERED),
        ({}, (1.0, 0.0), {"advantages": [0.0, 0.0, 0.0, 0.0]}, GroupState.FILTERED),
        ({}, (1.0, 0.0), {"advantages": [0.0, 0.0, 0.0, 0.1]}, GroupState.READY),
        ({"advantage": "max_rl"}, (-1.0, 1.0), {}, GroupState.FILTERED),
        ({"advantage": "max_rl"}, (-1.0, 2.0), {}, GroupState.READY),
        ({"advantage": "max_rl", "terms": {"distillation": 0.1}}, (-1.0, 1.0), REFERENCE, GroupState.READY),
        (MASKED, (1.0, 0.0), {"stops": [CUT, CUT]}, GroupState.FILTERED),
        (MASKED, (1.0, 0.0), {"stops": [CUT, WHOLE]}, GroupState.READY),
        (MASKED, (1.0, 0.5, 0.0), {"stops": [CUT, WHOLE, CUT]}, GroupState.FILTERED),
        ({}, (1.0, 0.0), {"stops": [CUT, CUT]}, GroupState.READY),
        (MASKED | {"terms": {"distillation": 0.1}}, (1.0, 0.0), {"stops": [CUT, CUT]} | REFERENCE, GroupState.FILTERED),
        (MASKED, (1.0, 0.0), {"stops": [CUT, CUT], "advantages": [0.0, 0.0, 0.5, 0.5]}, GroupState.FILTERED),
        ({}, (1.0, 0.5, 0.0), {"masks": [UNTRAINED, TRAINED, UNTRAINED]}, GroupState.FILTERED),
    ],
)
def test_only_groups_that_carry_no_gradient_are_filtered(
    algorithm: dict[str, Any], rewards: Sequence[float], fields: dict[str, Any], state: GroupState
) -> None:
    wanted = {f"algorithm__{key}": value for key, value in algorithm.items()}
    run = story.launch(algorithm__filter_zero_advantage=True, **wanted)
    [key] = intake.submit(run, [packed(rewards, **fields)], actor="api:env")
    assert ScoredGroup.objects.get(key=key).state == state


def test_a_run_stored_when_its_config_was_still_allowed_goes_on_and_loses_no_group_with_a_gradient() -> None:
    run = story.create()
    run.config["algorithm"] |= {"loss": {"type": "dppo"}, "filter_zero_advantage": True}
    with store.beyond_rights():
        run.save(update_fields=["config"])
    run = life.start(story.fresh(run))
    policies.published(policies.register_initial(run, path="/models/tiny"))
    [claim] = story.claim(story.fresh(run), 1)
    assert story.settle(claim, [1.0, 1.0]) == GroupState.READY
