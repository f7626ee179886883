"""Good bodies that something happened to: never an error of ours, and a group is stored whole or not at all."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollouts.models import ScoredGroup
from tests.hostile.application import Target, check_refusal, check_whole
from tests.hostile.case import good
from tests.hostile.wires import Unwritable, Wire, item_of, json_of, messagepack_of, packed, written
from tests.lanes import amount
from tests.rollouts.api import row_counts
from tests.rollouts.doors.atropos.api import item

pytestmark = [pytest.mark.django_db, pytest.mark.slow]
EXAMPLES = amount(100, 3000)
FULL = good() | {"key": None}
FULL["rollouts"][0] |= {
    "metrics": {"a": 1.0},
    "stop_reason": "length",
    "error": None,
    "first_policy_version": 0,
    "replica": "r",
    "generation_s": 0.5,
}
PER_TOKEN = [0.0, 0.0, -0.5, -0.5]
COLUMNS = [{"advantages": PER_TOKEN, "ref_logprobs": PER_TOKEN} | each for each in good()["rollouts"]]
STARTS: dict[Wire, Any] = {
    Wire.JSON: FULL,
    Wire.MESSAGEPACK: FULL,
    Wire.PACKED: packed(good() | {"rollouts": COLUMNS}),
    Wire.ATROPOS: item(env_id=0, overrides=[{}], group_overrides={}, generation_params={}, images=None)
    | {"distill_token_ids": [[[1]]], "distill_logprobs": [[[-0.5]]]}
    | item_of(good() | {"rollouts": COLUMNS}),
}
numbers = st.integers(-(2**66), 2**66) | st.floats() | st.sampled_from([0, 1, 2, -1, -100, 2**31, 2**31 - 1, 0.5, -0.0])
atoms = st.none() | st.booleans() | numbers | st.text(st.characters(), max_size=4) | st.binary(max_size=9)
values = st.recursive(
    atoms, lambda each: st.lists(each, max_size=4) | st.dictionaries(st.text(max_size=4), each), max_leaves=6
)


@st.composite
def mutated(draw: st.DrawFn, data: Any) -> Any:
    """The data with something at one place replaced, left out, added, doubled or exchanged."""
    if isinstance(data, dict) and data and draw(st.integers(0, 9)):
        key = draw(st.sampled_from(sorted(data)))
        match draw(st.sampled_from(["inside", "inside", "inside", "away", "more"])):
            case "inside":
                return data | {key: draw(mutated(data[key]))}
            case "away":
                return {name: each for name, each in data.items() if name != key}
            case _:
                return data | {draw(st.text(max_size=4)): draw(values)}
    if isinstance(data, list) and data and draw(st.integers(0, 9)):
        at = draw(st.integers(0, len(data) - 1))
        match draw(st.sampled_from(["inside", "inside", "inside", "away", "more", "twice", "turned"])):
            case "inside":
                return [*data[:at], draw(mutated(data[at])), *data[at + 1 :]]
            case "away":
                return [*data[:at], *data[at + 1 :]]
            case "more":
                return [*data[:at], draw(values), *data[at:]]
            case "twice":
                return [*data, data[at]]
            case _:
                return data[::-1]
    return draw(values)


def check_sent(target: Target, wire: Wire, body: bytes) -> None:
    before, newest = row_counts(), ScoredGroup.objects.order_by("-id").values_list("id", flat=True).first() or 0
    answer = target.submit(wire, body)
    if answer.status in {200, 201}:
        for group in ScoredGroup.objects.filter(id__gt=newest):
            check_whole(group)
        return
    check_refusal(answer, wire)
    assert row_counts() == before


@pytest.mark.parametrize("wire", Wire)
def test_a_good_group_with_other_values_in_it(target: Target, wire: Wire) -> None:
    encode = json_of if wire in {Wire.JSON, Wire.ATROPOS} else messagepack_of
    # An environment that did not hear of a reset is taken into the new attempt with its first request, good or bad.
    assert target.submit(wire, encode(STARTS[wire])).status in {200, 201}

    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.integers(1, 3).flatmap(lambda times: repeatedly(STARTS[wire], times)))
    def check(group: Any) -> None:
        try:
            body = encode(group)
        except (Unwritable, TypeError):
            return
        check_sent(target, wire, body)

    check()


def repeatedly(data: Any, times: int) -> st.SearchStrategy[Any]:
    changed = mutated(data)
    return changed if times == 1 else changed.flatmap(lambda each: repeatedly(each, times - 1))


@pytest.mark.parametrize("wire", Wire)
def test_a_good_body_with_noise_in_it(target: Target, wire: Wire) -> None:
    body = written(wire, good()) or b""
    places = st.integers(0, len(body))

    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.binary(max_size=8), places, st.integers(0, 8) | places)
    def check(noise: bytes, start: int, length: int) -> None:
        check_sent(target, wire, body[:start] + noise + body[start + length :])

    check()
