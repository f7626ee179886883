"""Every case of the corpus over every wire: never an error of ours, never a fragment, and what is taken comes back."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from rollouts.formats.atropos.encoding import read_items
from rollouts.formats.atropos.items import KEYS
from rollouts.formats.json_arrays import encode
from rollouts.models import ScoredGroup
from rollouts.storable import displayable
from tests.hostile.application import Target, check_refusal, check_whole, columns_of
from tests.hostile.case import Case, good
from tests.hostile.corpus import CASES
from tests.hostile.wires import PER_TOKEN, Wire, listed, written
from tests.lanes import IS_LONG
from tests.rollouts.api import row_counts

pytestmark = [pytest.mark.django_db, pytest.mark.slow]
FRIEND = {wire: written(wire, good()) or b"" for wire in Wire}
"""A good group that comes in the same request as a bad one."""


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_refused_whole_or_taken_whole(target: Target, case: Case) -> None:
    unsaid = set(case.variants)
    for wire in Wire:
        bodies = case.bodies(wire)
        unsaid -= bodies.keys()
        if wire in case.taken:
            assert bodies, f"{wire} cannot say it"
            check_taken(target, wire, list(bodies.values()))
            continue
        for name, body in bodies.items():
            try:
                check_refused(target, wire, body, in_company=IS_LONG or not case.is_large)
            except BaseException as error:
                error.add_note(f"{name}, over {wire}")
                raise
    assert not unsaid, "no wire can say it"


def check_refused(target: Target, wire: Wire, body: bytes, *, in_company: bool = True) -> None:
    """Alone and in company, and nothing is stored of either. Large ones are in company in the long lane only."""
    before = row_counts()
    check_refusal(target.submit(wire, body), wire)
    if in_company:
        check_refusal(target.submit(wire, listed(wire, [FRIEND[wire], body]), many=True), wire)
    assert row_counts() == before


def check_taken(target: Target, wire: Wire, bodies: list[bytes]) -> None:
    """In one list, or alone if it is one; every group is stored whole and comes back as it was sent."""
    newest = ScoredGroup.objects.order_by("-id").values_list("id", flat=True).first() or 0
    many = len(bodies) > 1
    answer = target.submit(wire, listed(wire, bodies) if many else bodies[0], many=many)
    assert answer.status in {200, 201}, (answer.status, answer.body[:500])
    groups = list(ScoredGroup.objects.filter(id__gt=newest).order_by("id"))
    assert len(groups) == len(bodies)
    for body, group in zip(bodies, groups, strict=True):
        check_whole(group)
        if wire is Wire.ATROPOS:
            check_comes_back(json.loads(body), group)
        else:
            check_stored(wire, body, group)


def check_stored(wire: Wire, body: bytes, group: ScoredGroup) -> None:
    """What came over a native wire is what is stored, but for text that Postgres cannot hold."""
    sent = json.loads(body) if wire is Wire.JSON else msgspec.msgpack.decode(body)
    assert group.problem_key == sent["problem_key"]
    stored = columns_of(group)
    for index, rollout in enumerate(sent["rollouts"]):
        for name, kind in PER_TOKEN.items():
            if name in rollout:
                assert stored[name][index] == numbers_of(rollout[name], kind), name
        for name in ("reward", "replica", "messages"):
            if name in rollout:
                assert stored[name][index] == repaired(rollout[name]), name
        metrics = {key: float(value) for key, value in stored["metrics"][index].items()}
        assert metrics == rollout.get("metrics", {})


def check_comes_back(item: dict[str, Any], group: ScoredGroup) -> None:
    """The item that a trainer gets is the one that came, with floats of 32 bits and what Atropos makes of its types."""
    kinds: dict[str, Callable[[Any], Any]] = {"tokens": int, "masks": int, "scores": float, "distill_token_ids": int}
    kinds |= dict.fromkeys(("inference_logprobs", "ref_logprobs", "advantages", "distill_logprobs"), short_float)
    given = json.loads(encode(read_items([group.pk])[0]))
    assert list(given) == list(KEYS)
    for name in KEYS:
        sent = item.get(name)
        expected = each(kinds[name], sent) if name in kinds and sent is not None else sent
        assert given[name] == (int(sent) if name == "env_id" and sent is not None else expected), name


def numbers_of(values: list[float] | bytes, kind: str) -> list[Any]:
    array = np.frombuffer(values, kind) if isinstance(values, bytes) else np.array(values, "<f8").astype(kind)
    numbers: list[Any] = array.tolist()
    return numbers


def repaired(value: Any) -> Any:
    """As Postgres can hold it."""
    if isinstance(value, list):
        return [repaired(each) for each in value]
    if isinstance(value, dict):
        return {name: repaired(each) for name, each in value.items()}
    return displayable(value) if isinstance(value, str) else value


def short_float(value: Any) -> float:
    """As it is printed: the shortest decimal that reads back as the same 32 bits."""
    return float(str(np.float32(value)))


def each(kind: Callable[[Any], Any], value: Any) -> Any:
    """Nested lists of what is made of each number."""
    return [each(kind, inner) for inner in value] if isinstance(value, list) else kind(value)
