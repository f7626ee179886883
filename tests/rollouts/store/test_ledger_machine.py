"""Random lives of groups against a small model in memory: whatever happens, the ledger holds.

Each rule does one thing to the store and to the model; after each of them the tables must be what the model says.
"""

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from environments.types import Claim
from rollouts.errors import LeaseLost, RunOver, StaleEpoch
from rollouts.models import Batch, BatchItem, Event, Lease, Rollout, Run, ScoredGroup
from rollouts.services.batches import forming
from rollouts.services.groups import leases
from rollouts.services.runs import life
from rollouts.states import GROUP_TRANSITIONS, RunState
from tests.lanes import amount
from tests.rollouts import story

REWARDS = st.sampled_from([[1.0, 0.0], [1.0, 1.0], [1.0, None], [None, None]])


class Ledger(RuleBasedStateMachine):
    """Two groups of two rollouts make a batch; generation may be one batch ahead."""

    @initialize()
    def begin(self) -> None:
        self.run, self.epoch = story.train(
            max_steps=4, algorithm__max_off_policy_steps=0, algorithm__filter_zero_advantage=True
        )
        self.states: dict[str, str] = {}
        """Group key -> state."""
        self.claims: dict[str, Claim] = {}
        """Group key -> the claim whose token is good."""
        self.lost: list[Claim] = []
        self.batches: list[tuple[str, set[str]]] = []
        """Per step: hash and members."""
        self.bodies: list[bytes] = []
        self.acked = 0
        self.over = False

    # --- drivers
    @rule(limit=st.integers(1, 3))
    def claim(self, limit: int) -> None:
        claims = leases.claim(self.run, holder="driver", limit=limit, lease_s=60)
        if self.over:
            assert (claims.claims, claims.reason) == ([], "over")
        for each in claims.claims:
            if each.group in self.claims:
                self.lost.append(self.claims[each.group])
            self.states[each.group] = "playing"
            self.claims[each.group] = each

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), rewards=REWARDS)
    def settle(self, data: Any, rewards: list[float | None]) -> None:
        key = data.draw(st.sampled_from(sorted(self.claims)))
        state = story.settle(self.claims.pop(key), rewards)
        expected = {(1.0, 0.0): "ready", (1.0, None): "filtered", (1.0, 1.0): "filtered", (None, None): "failed"}
        assert state == expected[tuple(rewards)]
        self.states[key] = state

    @precondition(lambda self: self.claims)
    @rule()
    def die(self) -> None:
        """Every driver is silent for a day; what was lost three times is given up."""
        story.expire(self.run)
        for pk in leases.quarantine_expired(self.run):
            key = ScoredGroup.objects.get(pk=pk).key
            self.states[key] = "failed"
            self.lost.append(self.claims.pop(key))

    @precondition(lambda self: self.lost)
    @rule(data=st.data())
    def wake_up_late(self, data: Any) -> None:
        claim = data.draw(st.sampled_from(self.lost))
        with pytest.raises(LeaseLost):
            story.settle(claim)
        assert leases.renew([claim.token], lease_s=60) == set()

    @rule(key=st.sampled_from(["a", "b", "c"]), version=st.integers(0, 4))
    def submit(self, key: str, version: int) -> None:
        if self.over or version > self.acked + 1:
            return
        first = story.submit(self.run, [story.scored(key, problem_key=key, version=version)], actor="api:x")
        assert first == [key]
        self.states.setdefault(key, "ready")

    # --- trainer
    @rule()
    def fetch(self) -> None:
        step = len(self.batches)
        if self.over or step >= self.run.max_steps:
            with pytest.raises(RunOver):
                forming.fetch(self.run, epoch=self.epoch, step=step)
            return
        delivery = forming.fetch(self.run, epoch=self.epoch, step=step)
        stale = ScoredGroup.objects.filter(run=self.run, state="stale").values_list("key", "min_policy_version")
        assert all(version < step for _, version in stale)
        self.states |= {key: "stale" for key, _ in stale}
        if delivery is None:
            assert Counter(self.states.values())["ready"] < 2
            return
        members = set(
            BatchItem.objects.filter(batch__run=self.run, batch__step=step).values_list("group__key", flat=True)
        )
        assert {self.states[key] for key in members} == {"ready"}
        self.states |= dict.fromkeys(members, "batched")
        self.batches.append((delivery.sha256, members))
        self.bodies.append(delivery.body)

    @precondition(lambda self: self.batches and not self.over)
    @rule(data=st.data())
    def fetch_again(self, data: Any) -> None:
        step = data.draw(st.integers(0, len(self.batches) - 1))
        delivery = forming.fetch(self.run, epoch=self.epoch, step=step)
        assert delivery is not None
        assert delivery.body == self.bodies[step]

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def acknowledge(self, data: Any) -> None:
        self.acknowledge_step(data.draw(st.integers(0, min(self.acked, len(self.batches) - 1))))

    def acknowledge_step(self, step: int) -> None:
        sha256, members = self.batches[step]
        if self.over:
            with pytest.raises(RunOver):
                story.ack(self.run, self.epoch, step, sha256)
            return
        assert story.ack(self.run, self.epoch, step, sha256) == max(self.acked, step + 1)
        if step == self.acked:
            self.states |= dict.fromkeys(members, "trained")
            self.acked += 1
            story.announce(self.run, self.epoch, self.acked)
            story.publish(self.run)

    @precondition(lambda self: not self.over)
    @rule()
    def replace_the_trainer(self) -> None:
        zombie, self.epoch = self.epoch, story.register(self.run).epoch
        for write in (
            lambda: forming.fetch(self.run, epoch=zombie, step=0),
            lambda: story.ack(self.run, zombie, 0, "0" * 64),
            lambda: story.announce(self.run, zombie, 1),
        ):
            with pytest.raises(StaleEpoch):
                write()

    @precondition(lambda self: not self.over)
    @rule()
    def make_a_step(self) -> None:
        """All of the above in a row, so that a random life gets somewhere."""
        self.claim(limit=3)
        for key in sorted(self.claims):
            self.states[key] = story.settle(self.claims.pop(key), [1.0, 0.0])
        self.fetch()
        if len(self.batches) > self.acked:
            self.acknowledge_step(self.acked)

    @precondition(lambda self: not self.over and len(self.batches) > 1)
    @rule()
    def stop(self) -> None:
        life.request_stop(self.run, actor="user:ada")
        life.end(story.fresh(self.run), to=RunState.STOPPED)
        self.over = True
        self.lost += self.claims.values()
        self.claims = {}
        self.states |= {key: "surplus" for key, state in self.states.items() if state in GROUP_TRANSITIONS}

    # --- what must always hold
    @invariant()
    def the_store_is_what_the_model_says(self) -> None:
        if not hasattr(self, "states"):
            return
        stored = dict(ScoredGroup.objects.filter(run=self.run).values_list("key", "state"))
        assert stored == self.states
        created = Event.objects.filter(run=self.run, object_kind="scoredgroup", from_state="").count()
        assert created == len(stored)
        held = set(Lease.objects.filter(run=self.run).values_list("group__key", flat=True))
        assert held == {key for key, state in stored.items() if state == "playing"} == set(self.claims)
        steps = Counter(BatchItem.objects.filter(batch__run=self.run).values_list("group__key", flat=True))
        assert set(steps.values()) <= {1}
        in_batches = {key for _, members in self.batches for key in members}
        assert set(steps) == in_batches
        assert {key for key, state in stored.items() if state in {"batched", "trained"}} <= in_batches
        assert list(Batch.objects.filter(run=self.run).order_by("step").values_list("step", "sha256")) == [
            (step, sha256) for step, (sha256, _) in enumerate(self.batches)
        ]
        assert not Rollout.objects.filter(group__state="playing").exists()

    @invariant()
    def generation_is_never_further_ahead_than_it_may_be(self) -> None:
        if not hasattr(self, "states"):
            return
        run = Run.objects.get(pk=self.run.pk)
        assert run.next_step == self.acked
        claimed = ScoredGroup.objects.filter(run=run, problem_index__isnull=False)
        lively = claimed.filter(state__in=["playing", "ready", "batched", "trained"]).count()
        assert lively <= (run.live_version + 2) * 2 + Counter(self.states.values())["stale"]


@pytest.mark.django_db
@pytest.mark.parametrize("examples", [4, pytest.param(amount(15, 400), marks=pytest.mark.slow)])
def test_the_ledger_holds_whatever_happens(examples: int) -> None:
    wanted = settings(
        max_examples=examples,
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    run_state_machine_as_test(Ledger, settings=wanted)
