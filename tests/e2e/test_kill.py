"""One RL run, and every process of it killed while it runs.

Real vLLM, real torchrun, real PostgreSQL, Redis, Celery. The moments are random; the seed is printed and replays their
order and distances (not, of course, what the machine was doing then).
"""

import os
import random
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import redis

from tests.e2e.yard import Yard, make_tiny_model, running_yard, until
from tests.lanes import amount

pytestmark = [pytest.mark.e2e, pytest.mark.vllm, pytest.mark.timeout(amount(1500, 4500))]

VICTIMS = ["worker", "web", "reconciler", "redis", "postgres", "vllm", "trainer"]
ROUNDS = amount(1, 3)
STEPS = amount(70, 360)
FLUSHES = amount(60, 180)


class Submitter(threading.Thread):
    """An external environment that submits groups all the while and remembers which were acknowledged."""

    def __init__(self, yard: Yard, run: str, token: str) -> None:
        super().__init__(daemon=True)
        self.url = f"{yard.url}/api/v1/runs/{run}/groups"
        self.headers = {"Authorization": f"Token {token}"}
        self.acknowledged: list[str] = []
        self.refused: list[tuple[int, str]] = []
        self.halt = threading.Event()

    def run(self) -> None:
        with httpx.Client(timeout=10, headers=self.headers) as client:
            number = 0
            while not self.halt.wait(0.5):
                key = f"outside-{number}"
                try:
                    answer = client.post(self.url, json=_group(key, number))
                except httpx.TransportError:
                    continue  # unknown whether it was stored: the same key is sent again
                if answer.status_code == 201:
                    self.acknowledged += answer.json()["stored"]
                    number += 1
                elif answer.status_code == 410:
                    return
                elif answer.status_code < 500:
                    self.refused.append((answer.status_code, answer.text))
                    return


class Flusher(threading.Thread):
    """FLUSHALL once a second, also while Redis is being restarted."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.client = redis.Redis.from_url(url, socket_connect_timeout=1)
        self.flushed = 0
        self.halt = threading.Event()

    def run(self) -> None:
        while self.flushed < FLUSHES and not self.halt.wait(1.0):
            try:
                self.client.flushall()
                self.flushed += 1
            except redis.RedisError:
                continue


def _group(key: str, number: int) -> dict[str, Any]:
    tokens = [65, 66, 67, 68 + number % 20]
    rollout = {"token_ids": tokens, "loss_mask": [0, 0, 1, 1], "inference_logprobs": [0.0, 0.0, -1.5, -2.0]}
    return {
        "key": key,
        "environment": "outside",
        "problem_key": f"problem-{number}",
        "rollouts": [{**rollout, "reward": float(index % 2)} for index in range(4)],
    }


def test_a_run_survives_the_death_of_every_process(tmp_path: Path) -> None:
    seed = int(os.environ.get("ROLLYARD_KILL_SEED", random.SystemRandom().randrange(10**6)))
    print(f"ROLLYARD_KILL_SEED={seed}")
    dice = random.Random(seed)
    model = make_tiny_model(tmp_path / "model")
    with running_yard(tmp_path / "up.log") as yard:
        token = yard.rollyard("token", "create", "outside", "--scope", "submit")["token"]
        run = yard.rollyard(
            "launch",
            "reverse-text-rl",
            f"model.path={model}",
            f"max_steps={STEPS}",
            "batch.batch_size=64",
            "trainer.checkpoint_every=3",
            "evaluation.problems=16",
            "evaluation.every=40",
        )["run"]
        until(lambda: yard.step(run) >= 1, within_s=240, what="the first step")
        submitter = Submitter(yard, run, token)
        flusher = Flusher(yard.home.redis_url)
        submitter.start()
        flusher.start()

        for victim in (each for _ in range(ROUNDS) for each in dice.sample(VICTIMS, len(VICTIMS))):
            wait_s = dice.uniform(0.5, 3.0)
            time.sleep(wait_s)  # the random moment is the point of the test
            assert yard.state(run) in {None, "running", "finishing"}, f"the run ended before {victim} was killed"
            target = until(partial(yard.kill_one, victim, dice.random()), within_s=120, what=f"a {victim} to kill")
            print(f"kill -9 {victim}: pid {target.pid} after {wait_s:.1f} s, at step {yard.step(run)}")
            psutil.wait_procs([target], timeout=10)
            until(partial(_moved_on, yard, run, yard.step(run)), within_s=240, what=f"a step after {victim} died")

        until(lambda: yard.state(run) in {"finished", "failed"}, within_s=600, what="the end of the run")
        submitter.halt.set()
        submitter.join(30)
        flusher.join(FLUSHES + 30)
        assert submitter.refused == []
        assert flusher.flushed == FLUSHES
        check(yard, run, submitter.acknowledged)


def _moved_on(yard: Yard, run: str, from_step: int) -> bool:
    return yard.step(run) > from_step or yard.state(run) == "finished"


def check(yard: Yard, run: str, acknowledged: list[str]) -> None:
    """Hold the tables against the promises."""
    [(run_id, state, reason, next_step)] = yard.sql(
        "SELECT id, state, reason_code || reason_params::text, next_step FROM rollouts_run WHERE key = %s", run
    )
    assert (state, next_step) == ("finished", STEPS), reason

    stored = {key for (key,) in yard.sql("SELECT key FROM rollouts_scoredgroup WHERE run_id = %s", run_id)}
    assert set(acknowledged) <= stored, "an acknowledged group was lost"
    assert len(acknowledged) > 10, "the outside environment was hardly served"

    steps = [step for (step,) in yard.sql("SELECT step FROM rollouts_batch WHERE run_id = %s ORDER BY step", run_id)]
    assert steps == list(range(STEPS)), "steps are not contiguous"
    assert yard.sql("SELECT count(*) FROM rollouts_batch WHERE run_id = %s AND state <> 'trained'", run_id) == [(0,)]
    losses = yard.sql(
        "SELECT step FROM rollouts_metricpoint WHERE run_id = %s AND key = 'loss/mean' ORDER BY step", run_id
    )
    assert [step for (step,) in losses] == list(range(STEPS))

    twice = yard.sql(
        "SELECT group_id FROM rollouts_batchitem JOIN rollouts_batch AS b ON b.id = batch_id WHERE b.run_id = %s"
        " GROUP BY group_id HAVING count(*) > 1",
        run_id,
    )
    assert twice == [], "a group is in two steps"

    created = yard.sql(
        "SELECT count(*) FROM rollouts_event WHERE run_id = %s AND object_kind = 'scoredgroup' AND from_state = ''",
        run_id,
    )[0][0]
    ledger = dict(yard.sql("SELECT state, count(*) FROM rollouts_scoredgroup WHERE run_id = %s GROUP BY state", run_id))
    assert sum(ledger.values()) == created
    assert set(ledger) <= {"trained", "evaluated", "stale", "filtered", "failed", "rejected", "surplus"}, ledger
    trained = yard.sql(
        "SELECT count(*) FROM rollouts_batchitem JOIN rollouts_batch AS b ON b.id = batch_id WHERE b.run_id = %s",
        run_id,
    )
    assert trained == [(ledger["trained"],)]

    lag = yard.sql("SELECT max(value) FROM rollouts_metricpoint WHERE run_id = %s AND key = 'lag/max'", run_id)[0][0]
    assert lag <= 8, "a rollout over max_off_policy_steps was trained"
    assert yard.sql("SELECT count(*) FROM rollouts_lease WHERE run_id = %s", run_id) == [(0,)]
    assert yard.sql(
        "SELECT count(*) FROM rollouts_replica WHERE run_id = %s AND state NOT IN ('exited', 'lost')", run_id
    ) == [(0,)]
    print(f"ledger {ledger}, {created} groups created, {len(acknowledged)} acknowledged outside, max lag {lag}")
