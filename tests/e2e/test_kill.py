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

import psutil
import pytest
import redis

from tests.e2e.promises import Submitter, check
from tests.e2e.yard import Yard, make_tiny_model, running_yard, until
from tests.lanes import IS_LONG, amount

pytestmark = [pytest.mark.e2e, pytest.mark.vllm, pytest.mark.timeout(amount(1500, 4500))]

VICTIMS = ["worker", "web", "reconciler", "redis", "postgres", "vllm", "trainer"]
ROUNDS = amount(1, 3)
STEPS = amount(5000, 360)
"""Usually more than there is time for: the run is stopped when all were killed. In the long lane it ends by itself."""


class Flusher(threading.Thread):
    """FLUSHALL once a second until it is halted, also while Redis is being restarted."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.client = redis.Redis.from_url(url, socket_connect_timeout=1)
        self.flushed = 0
        self.halt = threading.Event()

    def run(self) -> None:
        while not self.halt.wait(1.0):
            try:
                self.client.flushall()
                self.flushed += 1
            except redis.RedisError:
                continue


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
            "batch.batch_size=32",
            "trainer.checkpoint_every=3",
            *(["evaluation.problems=16", "evaluation.every=40"] if IS_LONG else ["evaluation=null"]),
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

        if not IS_LONG:
            yard.rollyard("runs", "stop", run)
        until(lambda: yard.state(run) in {"finished", "stopped", "failed"}, within_s=600, what="the end of the run")
        for thread in (submitter, flusher):
            thread.halt.set()
            thread.join(30)
        assert submitter.refused == []
        assert flusher.flushed
        check(yard, run, submitter.acknowledged, STEPS if IS_LONG else None)


def _moved_on(yard: Yard, run: str, from_step: int) -> bool:
    return yard.step(run) > from_step or yard.state(run) == "finished"
