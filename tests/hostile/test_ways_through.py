"""The corpus on its other ways: into a lease that is settled, and out to a trainer."""

import json
from typing import Any

import msgspec
import pytest

from rollouts.models import Lease, ScoredGroup
from rollouts.states import GroupState
from tests.factories import make_run
from tests.hostile.application import Target, check_refusal, check_whole
from tests.hostile.case import good
from tests.hostile.corpus import CASES
from tests.hostile.wires import PER_TOKEN, Unwritable, Wire, json_of
from tests.rollouts.api import row_counts
from trainers.wire import TrainingBatch

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
TOO_NEW = "not there yet"


def test_rollouts_that_no_group_may_have_do_not_settle_a_lease() -> None:
    target = Target()
    [claim] = json.loads(target.native("POST", "work/claim", b'{"holder": "mine"}').body)["claims"]
    sent = 0
    for case in CASES:
        is_of_rollouts = all(path.startswith("rollouts") for changes in case.variants.values() for path, _ in changes)
        if case.is_large or Wire.JSON in case.taken or not is_of_rollouts:
            continue
        for name, group in case.groups().items():
            try:
                body = json_of({"token": claim["token"], "problem_key": "p", "rollouts": group.get("rollouts")})
            except Unwritable:
                continue
            if name == TOO_NEW or group == good() or "rollouts" not in group:
                continue
            before = row_counts()
            check_refusal(target.native("POST", "work/settle", body))
            assert row_counts() == before, (case.name, name)
            sent += 1
    assert sent > 100
    body = json_of({"token": claim["token"], "problem_key": "p", "rollouts": good()["rollouts"]})
    assert target.native("POST", "work/settle", body).json() == {"state": "ready"}
    check_whole(ScoredGroup.objects.get(problem_key="p"))
    assert not Lease.objects.filter(token=claim["token"]).exists()


def test_what_was_taken_comes_out_in_batches_as_it_went_in() -> None:
    size = 64
    target = Target(run=make_run(overrides={"sampling.group_size": 2, "batch.batch_size": size}))
    sent: dict[str, dict[str, Any]] = {}
    for case in CASES:
        if Wire.PACKED in case.taken and not case.is_large:
            for body in case.bodies(Wire.PACKED).values():
                [key] = target.submit(Wire.PACKED, body).json()["stored"]
                sent[key] = msgspec.msgpack.decode(body)
    epoch = {"rollyard_epoch": str(target.native("POST", "trainer").json()["epoch"])}
    step, trained = 0, 0
    while (answer := target.native("GET", f"batches/{step}", **epoch)).status == 200:
        for rollout in msgspec.msgpack.decode(answer.body, type=TrainingBatch).rollouts:
            original = sent[rollout.group]["rollouts"][rollout.index]
            for name in PER_TOKEN:
                assert getattr(rollout, name) == original.get(name), name
            trained += 1
        ack = json_of({"metrics": {}, "batch_sha256": answer.headers["rollyard-sha256"]})
        assert target.native("POST", f"steps/{step}", ack, **epoch).status == 200
        step += 1
    left = ScoredGroup.objects.filter(run=target.run, state=GroupState.READY, rollout_count=2).count()
    assert 2 * left < size, "what is ready makes no batch"
    assert trained > 200
