"""A run whose trainer has two nodes, with servers and workers as jobs and nothing shared but the network, learns."""

from pathlib import Path
from statistics import fmean

import pytest

from tests.e2e.yard import Yard, until
from tests.slurm.cluster import Cluster

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.vllm,
    pytest.mark.timeout(1800),
]

STEPS = 60
RISE = 0.15


def test_reverse_text_is_learned_to_the_end(distant: Yard, apart: Cluster, hidden: Path) -> None:
    assert len(distant.rollyard("workers", "start", "2", "--hours", "1")["jobs"]) == 2
    distant.finish("reverse-text-sft", "evaluation=null")  # makes the model, on this machine
    spread = ["trainer.nodes=2", "trainer.world_size=2", "inference.replicas=2"]
    run = distant.finish("reverse-text-rl", "launcher.type=slurm", *spread, "evaluation=null", f"max_steps={STEPS}")
    rewards = distant.metric(run, "reward/mean")
    thirds = [fmean(rewards[at : at + STEPS // 3]) for at in range(0, STEPS, STEPS // 3)]
    [(seconds,)] = distant.sql(
        "SELECT extract(epoch FROM finished_at - started_at)::float FROM rollouts_run WHERE key = %s", run
    )
    print(f"{STEPS} steps in {seconds:.0f} s; mean reward of each third: {[round(third, 3) for third in thirds]}")
    assert thirds[2] > thirds[0] + RISE
    players = distant.sql(
        "SELECT count(DISTINCT o.worker) FROM rollouts_rollout AS o JOIN rollouts_scoredgroup AS g ON g.id = o.group_id"
        " JOIN rollouts_run AS r ON r.id = g.run_id WHERE r.key = %s",
        run,
    )
    assert players == [(2,)], "both workers played"
    until(lambda: len(apart.jobs()) == 2, within_s=60, what="that of the run no job is left")
    distant.rollyard("workers", "stop")
    until(lambda: not apart.jobs(), within_s=60, what="the end of the workers")
