"""The life of a run through the services, in short words, for tests of the store."""

import struct
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec
from django.db import connection, transaction

from environments.types import Claim, PlayedGroup, PlayedRollout, Split, StopReason
from rollouts.formats.arrays import pack_group
from rollouts.models import PolicyVersion, Run
from rollouts.services.batches import forming
from rollouts.services.groups import intake, leases, settling
from rollouts.services.runs import life, policies, trainer_writes
from rollouts.states import GroupState
from tests.factories import make_project, somebody, with_environments
from trainers.config import resolve
from trainers.wire import (
    MaskReason,
    PolicyVersionIn,
    StepAck,
    TokenValuesIn,
    TrainerRegistration,
    TrainingBatch,
    TrainingRollout,
)

SMALL = {
    "sampling.group_size": 2,
    "batch.batch_size": 4,
    "max_steps": 3,
    "evaluation": None,
    "algorithm.max_async_level": 1,
}
"""Two groups of two rollouts make a batch; three steps make a run."""


def create(**overrides: Any) -> Run:
    """A small run, as a person launches it. Keywords are dotted keys with `__` for the dot."""
    environments, project = overrides.pop("environments", None), overrides.pop("project", None)
    values = SMALL | {key.replace("__", "."): value for key, value in overrides.items()}
    resolved = resolve("reverse-text-rl", overrides=values)
    if environments is not None:
        resolved = with_environments(resolved, environments)
    return life.create(project=project or make_project(), user=somebody(), resolved=resolved, actor="user:ada")


def launch(**overrides: Any) -> Run:
    """A small run that has started, with version 0 live."""
    run = life.start(create(**overrides))
    policies.published(policies.register_initial(run, path="/models/tiny"))
    return fresh(run)


def train(**overrides: Any) -> tuple[Run, int]:
    """A small run with a trainer: the run and the trainer's epoch."""
    run = launch(**overrides)
    return fresh(run), register(run).epoch


def expire(run: Run) -> None:
    """Let every lease of the run lie in the past."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE rollouts_lease SET claimed_at = claimed_at - interval '1 day',"
            " expires_at = expires_at - interval '1 day' WHERE run_id = %s",
            [run.pk],
        )


def launch_supervised() -> Run:
    """A supervised run that has started."""
    resolved = resolve("reverse-text-sft", overrides={"max_steps": 3, "optimizer.warmup_steps": 0})
    return life.start(life.create(project=make_project(), user=somebody(), resolved=resolved, actor="user:ada"))


def register(run: Run) -> TrainerRegistration:
    return trainer_writes.register_trainer(run, world_size=1, hostname="node", pid=7, actor="api:trainer")


def fresh(run: Run) -> Run:
    """The run as the database has it now."""
    return Run.objects.get(pk=run.pk)


def rollout(reward: float | None = 1.0, *, version: int | None = 0, tokens: int = 4, **fields: Any) -> PlayedRollout:
    """A rollout of two prompt tokens and some sampled ones; without a reward one that failed."""
    sampled = tokens - 2
    values: dict[str, Any] = {
        "token_ids": list(range(65, 65 + tokens)),
        "loss_mask": [0, 0] + [1] * sampled,
        "inference_logprobs": [0.0, 0.0] + [-0.5] * sampled,
        "reward": reward,
        "stop_reason": StopReason.ERROR if reward is None else StopReason.STOP,
        "dispatch_policy_version": version,
        "first_policy_version": version,
        "last_policy_version": version,
    }
    return PlayedRollout(**(values | fields))


def scored(key: str | None = None, rewards: Sequence[float | None] = (1.0, 0.0), **fields: Any) -> PlayedGroup:
    """A group as an external environment submits it."""
    version = fields.pop("version", 0)
    values = {"environment": "reverse_text", "problem_key": "cat"} | fields
    return PlayedGroup(key=key, rollouts=[rollout(reward, version=version) for reward in rewards], **values)


def submit(run: Run, scored_groups: Sequence[PlayedGroup], *, actor: str) -> list[str]:
    packed = [pack_group(group, ("groups", at)) for at, group in enumerate(scored_groups)]
    return intake.submit(run, packed, actor=actor)


def claim(run: Run, limit: int = 100, *, holder: str = "driver", lease_s: float = 30.0) -> list[Claim]:
    return leases.claim(run, holder=holder, limit=limit, lease_s=lease_s).claims


def claim_evaluated(run: Run, limit: int = 100) -> list[Claim]:
    """Claim as well what training may have beside it, and leave that."""
    return [each for each in claim(run, limit) if each.split is Split.EVAL]


def settle(claim: Claim, rewards: Sequence[float | None] | None = None, *, version: int | None = None) -> GroupState:
    """Settle a claimed group; every second rollout gets a reward unless said otherwise."""
    rewards = [float(index % 2) for index in range(claim.group_size)] if rewards is None else rewards
    version = claim.policy_version if version is None else version
    played = [rollout(reward, version=version) for reward in rewards]
    return settling.settle(token=claim.token, problem_key=f"p/{claim.problem_index}", rollouts=played, worker="w")


def generate(run: Run) -> int:
    """Play everything that may be played now; return how many groups that were."""
    claims = claim(run)
    for each in claims:
        settle(each)
    return len(claims)


def ack(
    run: Run, epoch: int, step: int, sha256: str | None, values: Sequence[TokenValuesIn] = (), **metrics: float
) -> int:
    said = StepAck(metrics=metrics, batch_sha256=sha256, token_values=list(values))
    return trainer_writes.ack_step(run, epoch=epoch, step=step, ack=said)


def seen(rollout: TrainingRollout, *, ratio: float = 1.5, **fields: Any) -> TokenValuesIn:
    """What a trainer says of a rollout of a batch: the same numbers of each token that it trained on."""
    mask = list(rollout.loss_mask)

    def array(value: float) -> bytes:
        return struct.pack(f"<{len(mask)}f", *(value * each for each in mask))

    values: dict[str, Any] = {
        "group": rollout.group,
        "index": rollout.index,
        "trainer_logprobs": array(-0.25),
        "entropies": array(0.75),
        "ratios": array(ratio),
        "advantages": array(rollout.advantage),
        "mask_reasons": bytes(MaskReason.TRAINED if each else MaskReason.NOT_SAMPLED for each in mask),
        "texts": [f"t{at}" for at in range(len(mask))],
    }
    return TokenValuesIn(**(values | fields))


def see(run: Run, epoch: int, number: int = 0, **fields: Any) -> list[TokenValuesIn]:
    """Train a step and say what the optimizer saw of its rollouts."""
    generate(run)
    delivery = forming.fetch(run, epoch=epoch, step=number)
    assert delivery is not None
    batch = msgspec.msgpack.decode(delivery.body, type=TrainingBatch)
    values = [seen(rollout, **fields) for rollout in batch.rollouts]
    ack(run, epoch, number, delivery.sha256, values)
    return values


def announce(run: Run, epoch: int, version: int) -> PolicyVersion:
    path = run.directory / "weights" / f"step_{version}"
    wanted = PolicyVersionIn(version=version, path=str(path), manifest_sha256="a" * 64, size_bytes=10)
    return policies.announce(run, epoch=epoch, version_in=wanted)


def publish(run: Run) -> int | None:
    """Publish what may go live now; return its version."""
    version = policies.find_publishable(fresh(run))
    return None if version is None else policies.published(version).version


def step(run: Run, epoch: int, number: int) -> forming.Outgoing:
    """One whole step: generate, fetch, acknowledge, announce, publish."""
    generate(run)
    delivery = forming.fetch(run, epoch=epoch, step=number)
    assert delivery is not None, f"no batch for step {number}"
    ack(run, epoch, number, delivery.sha256)
    announce(run, epoch, number + 1)
    publish(run)
    return delivery


def _waiting() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return int(cursor.fetchone()[0])


def behind(pool: ThreadPoolExecutor, act: Callable[[], Any]) -> Future[Any]:
    """`act` in a transaction of another connection, begun and waiting for a lock when this returns."""

    def run() -> Any:
        try:
            with transaction.atomic():
                return act()
        finally:
            connection.close()

    before, future = _waiting(), pool.submit(run)
    deadline = time.monotonic() + 10
    while _waiting() == before:
        assert time.monotonic() < deadline, "it does not wait"
        assert not future.done(), "it does not wait"
    return future


def wait_for_a_waiter() -> None:
    """Until somebody waits for a lock, at most two seconds: who comes first or is never in the way does not."""
    deadline = time.monotonic() + 2
    while not _waiting() and time.monotonic() < deadline:
        time.sleep(0.01)


def together(*acts: Callable[[], Any]) -> list[Any]:
    """Run acts at the same moment, each on a connection of its own; return their results, or what they raised."""
    barrier = threading.Barrier(len(acts))
    results: list[Any] = [None] * len(acts)

    def run(index: int, act: Callable[[], Any]) -> None:
        try:
            barrier.wait(10)
            results[index] = act()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            results[index] = error
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=each) for each in enumerate(acts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "an act hangs"
    return results
