"""Everybody at once on real connections: drivers, submitters, a trainer that is replaced, the reconciler, a stop.

No deadlock, no error that is not a refusal, and at the end every promise holds.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest
from django.db import connection

from rollouts.errors import Conflict, ControlPlaneError, LeaseLost, RunOver, StaleEpoch, StateConflict
from rollouts.models import Run, ScoredGroup
from rollouts.services.batches import forming
from rollouts.services.groups import evaluations, leases
from rollouts.services.runs import life, policies, trainer_writes
from rollouts.states import GroupState, RunState
from tests.lanes import IS_LONG
from tests.rollouts import story
from tests.rollouts.invariants import check_ledger

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

STEPS = 20
LONG_S = 120.0


class Crowd:
    """Threads that each repeat one act until the run is over."""

    def __init__(self, run: Run, seed: int) -> None:
        self.run = run
        self.dice = random.Random(seed)
        self.over = threading.Event()
        self.errors: list[BaseException] = []
        self.refusals: Counter[str] = Counter()
        self.threads: list[threading.Thread] = []

    def add(self, act: Callable[[random.Random], None]) -> None:
        dice = random.Random(self.dice.random())
        self.threads.append(threading.Thread(target=self._repeat, args=(act, dice)))

    def _repeat(self, act: Callable[[random.Random], None], dice: random.Random) -> None:
        try:
            while not self.over.is_set():
                try:
                    act(dice)
                except ControlPlaneError as error:
                    self.refusals[type(error).__name__] += 1
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.errors.append(error)
            self.over.set()
        finally:
            connection.close()

    def play(self) -> None:
        for thread in self.threads:
            thread.start()
        assert self.over.wait(LONG_S), f"the run hangs: {story.fresh(self.run).next_step} steps, {self.refusals}"
        for thread in self.threads:
            thread.join(30)
            assert not thread.is_alive()
        if self.errors:
            raise self.errors[0]


@pytest.mark.parametrize(
    ("level", "ending"),
    [(2, "finishes"), (0, "is stopped"), *([(0, "finishes"), (2, "is stopped")] if IS_LONG else [])],
)
def test_a_run_that_everybody_pulls_at_keeps_every_promise(ending: str, level: int) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    run, first_epoch = story.train(
        max_steps=STEPS,
        algorithm__max_async_level=level,
        algorithm__max_off_policy_steps=2,
        evaluation={"problems": 4, "every": 4, "deadline_s": 1.0},
    )
    crowd = Crowd(run, seed)
    epochs = [first_epoch]

    def drive(dice: random.Random) -> None:
        holder = f"driver-{threading.get_ident()}"
        claims = leases.claim(run, holder=holder, limit=dice.randint(1, 3), lease_s=0.05).claims
        leases.renew([claim.token for claim in claims], lease_s=0.05)
        for claim in claims:
            fate = dice.random()
            if fate < 0.1:
                leases.release([claim.token])
            elif fate < 0.25:
                continue  # its holder died
            else:
                rewards = [dice.choice([0.0, 1.0, None]) for _ in range(claim.group_size)]
                try:
                    story.settle(claim, rewards)
                except LeaseLost:
                    crowd.refusals["LeaseLost"] += 1

    def submit(dice: random.Random) -> None:
        fresh = story.fresh(run)
        keys = [f"{dice.randint(0, 40)}" for _ in range(2)]
        version = max(0, fresh.next_step - dice.randint(0, 3))
        batch = [
            story.scored(key, problem_key=key, environment="outside", version=version) for key in dict.fromkeys(keys)
        ]
        story.submit(fresh, batch, actor="api:outside")
        crowd.over.wait(0.02)

    def train(dice: random.Random) -> None:
        epoch, fresh = epochs[-1], story.fresh(run)
        step = fresh.next_step
        if step == STEPS:
            trainer_writes.finish_training(run, epoch=epoch)
            crowd.over.wait(0.05)
            return
        if dice.random() < 0.05:
            epochs.append(story.register(run).epoch)
            return
        delivery = forming.fetch(run, epoch=epoch, step=step)
        if delivery is None:
            crowd.over.wait(0.01)
            return
        assert forming.fetch(run, epoch=epoch, step=step) == delivery
        story.ack(run, epoch, step, delivery.sha256, **{"time/step": 0.1})
        story.announce(run, epoch, step + 1)

    def zombie(dice: random.Random) -> None:
        story.ack(run, epochs[0] - dice.randint(0, 1), story.fresh(run).next_step, "0" * 64)

    def reconcile(dice: random.Random) -> None:
        fresh = story.fresh(run)
        leases.quarantine_expired(fresh)
        evaluations.conclude(fresh)
        version = policies.find_publishable(fresh)
        if version is not None:
            policies.published(version)
        if ending == "is stopped" and fresh.next_step >= STEPS // 2:
            life.request_stop(fresh, actor="user:ada")
            life.end(story.fresh(run), to=RunState.STOPPED)
            crowd.over.wait(0.2)  # let the others run into it
            crowd.over.set()
        elif fresh.state == RunState.FINISHING and fresh.live_version == STEPS:
            life.end(fresh, to=RunState.FINISHED)
            crowd.over.set()

    for act in (drive, drive, drive, submit, submit, train, zombie, reconcile):
        crowd.add(act)
    began = time.monotonic()
    crowd.play()
    print(f"{time.monotonic() - began:.1f} s, refused: {dict(crowd.refusals)}")
    expected = {each.__name__ for each in (Conflict, LeaseLost, RunOver, StaleEpoch, StateConflict)}
    assert set(crowd.refusals) <= expected | {"NotFound"}
    check_ledger(run)
    trained = ScoredGroup.objects.filter(run=run, state=GroupState.TRAINED)
    assert trained.exists()
