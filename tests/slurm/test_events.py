"""Runs on nodes that share nothing with the control plane but the network: files go to them and back."""

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from tests.e2e.promises import Submitter, check
from tests.e2e.yard import Yard, make_tiny_model, until
from tests.lanes import IS_LONG, amount
from tests.moving import files_below
from tests.slurm.cluster import Cluster
from tests.slurm.conftest import APART
from tests.slurm.events import KINDS, Events
from tests.slurm.test_run import SMALL

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.vllm,
    pytest.mark.timeout(amount(1800, 14400)),
]

EVENTS = int(os.environ.get("ROLLYARD_EVENTS") or amount(10, 200))
SEED = int(os.environ.get("ROLLYARD_KILL_SEED") or (random.SystemRandom().randrange(10**6) if IS_LONG else 3))
STEPS = 5000
"""More than there is time for: a run that lasts until all has happened is stopped, on a machine of any speed."""
OF_RUN = "JOIN rollouts_run AS r ON r.id = t.run_id WHERE r.key = %s AND t.kind = %s"
POOL = """
[workers.players]
minimum = 1
hours = 1
"""


def test_a_run_of_jobs_survives_whatever_is_killed_cancelled_preempted_or_lost(
    distant: Yard, apart: Cluster, hidden: Path
) -> None:
    print(f"ROLLYARD_KILL_SEED={SEED}")
    dice = random.Random(SEED)
    (distant.home.path / "cluster.toml").write_text(APART + POOL)
    model = make_tiny_model(hidden / "base" / "model")
    spread = ["trainer.nodes=2", "trainer.world_size=2", "inference.replicas=2"]
    words = [f"model.path={model}", "launcher.type=slurm", *spread, "evaluation=null", *SMALL]
    # One by hand, and one that is there whatever is lost.
    assert len(distant.rollyard("workers", "start", "1", "--hours", "1")["jobs"]) == 1
    token = distant.rollyard("token", "create", "outside", "--scope", "submit")["token"]
    run = distant.rollyard("launch", "reverse-text-rl", *words, f"max_steps={STEPS}")["run"]
    until(lambda: distant.step(run) >= 1, within_s=300, what="the first step")
    submitter = Submitter(distant, run, token)
    submitter.start()

    events = Events(distant, apart, run, dice)
    for kind in chosen(dice):
        time.sleep(dice.uniform(0.1, 1.0))  # the random moment is the point of the test
        assert distant.state(run) in {None, "running", "finishing"}, f"the run ended before {kind}"
        with told(distant, apart, run):
            victim, step, happened_at = events.happen(kind), distant.step(run), time.monotonic()
            until(partial(moved_on, distant, run, step), within_s=300, what=f"a step after {kind} {victim}")
        print(f"{kind} {victim} at step {step}: {time.monotonic() - happened_at:.1f} s until the next")
    if IS_LONG:
        with told(distant, apart, run):
            until(partial(is_over_in_time, distant, run, events), within_s=300, what="the end of the trainer's time")
        for _ in range(2):
            with told(distant, apart, run):
                until(partial(moved_on, distant, run, distant.step(run)), within_s=300, what="a step of all that serve")
            before = alive(distant, run)
            with told(distant, apart, run), events.controller_away():
                time.sleep(180)
                assert alive(distant, run) == before, "while SLURM is away nothing ends"
    distant.rollyard("runs", "stop", run)
    until(lambda: distant.state(run) in {"finished", "failed", "stopped"}, within_s=400, what="the end of the run")
    submitter.halt.set()
    submitter.join(30)
    assert submitter.refused == []
    check(distant, run, submitter.acknowledged)

    jobs = until(lambda: [job for job in apart.jobs() if "worker-" in job[3]], within_s=60, what="a worker of the pool")
    assert len(jobs) == len(apart.jobs()), "of the run no job is left"
    assert "players" in {worker["pool"] for worker in distant.rollyard("workers", "list")}
    noted = "SELECT token FROM rollouts_workerjob WHERE number = %s AND state = 'running'"
    until(lambda: distant.sql(noted, jobs[0][0]), within_s=30, what="a row of the worker's job")
    (distant.home.path / "cluster.toml").write_text(APART + POOL.replace("minimum = 1", "minimum = 0"))
    until(lambda: not [job for job in apart.jobs() if "players" in job[3]], within_s=60, what="the end of the pool's")
    assert distant.rollyard("workers", "stop") == {"stopped": len(apart.jobs()), "pools": []}
    until(lambda: not apart.jobs(), within_s=60, what="the end of the worker by hand")
    apart.resume()

    writers = distant.sql(
        f"SELECT t.created_at, t.ended_at FROM rollouts_replica AS t {OF_RUN} ORDER BY t.id", run, "trainer"
    )
    assert distant.sql(f"SELECT t.id FROM rollouts_replica AS t {OF_RUN} AND t.job_number <> ''", run, "trainer")
    assert all(ended <= begun for (_, ended), (begun, _) in pairwise(writers)), "two trainers at a time"
    print(f"{len(writers)} trainers; from a job's start to a trainer at work: {at_work_s(distant, run)} s")
    of_run = "JOIN rollouts_run AS r ON r.id = t.run_id WHERE r.key = %s"
    paths = distant.sql(f"SELECT t.path FROM rollouts_checkpoint AS t {of_run} AND t.state = 'complete'", run)
    assert paths
    assert all((Path(path) / "manifest.json").is_file() for (path,) in paths), "no row names files that are gone"
    distant.rollyard("checkpoints", "verify", run)
    directory = distant.home.path / "runs" / run
    assert not [path for path in files_below(directory) if path.suffix == ".partial"]
    logs = [file.read_text() for file in (directory / "replicas").glob("trainer-0-*/log.txt")]
    assert any("step 0: loss" in log for log in logs), "what a node wrote can be read here"


def test_a_full_disk_of_the_nodes_is_named_and_healed_by_space_alone(
    distant: Yard, apart: Cluster, hidden: Path
) -> None:
    model = make_tiny_model(hidden / "other" / "model")
    on_nodes = ["srun", "--nodes=3", "--ntasks-per-node=1", "--chdir=/"]
    apart.ask(*on_nodes, "sh", "-c", "cat /dev/zero > /tmp/filling 2> /dev/null || true")
    words = [f"model.path={model}", "launcher.type=slurm", "evaluation=null", *SMALL, "max_steps=1"]
    run = distant.rollyard("launch", "reverse-text-rl", *words)["run"]
    told = (
        "SELECT t.reason_code || t.reason_params::text FROM rollouts_replica AS t JOIN rollouts_run AS r"
        " ON r.id = t.run_id WHERE r.key = %s AND t.reason_params::text LIKE '%%No space left on device%%'"
    )
    until(lambda: distant.sql(told, run), within_s=30, what="a sentence about the disk")
    apart.ask(*on_nodes, "rm", "/tmp/filling")
    ready = f"SELECT t.id FROM rollouts_replica AS t {OF_RUN} AND t.state = 'ready'"
    until(lambda: distant.sql(ready, run, "trainer"), within_s=120, what="a trainer at work")
    distant.rollyard("runs", "stop", run)
    until(lambda: distant.state(run) == "stopped", within_s=60, what="the stop")


def chosen(dice: random.Random) -> list[str]:
    """So many events in any order, of which none comes a second time before all the others did."""
    rounds = (dice.sample(KINDS, len(KINDS)) for _ in range(-(-EVENTS // len(KINDS))))
    return [kind for each in rounds for kind in each][:EVENTS]


def moved_on(yard: Yard, run: str, from_step: int) -> bool:
    return yard.step(run) > from_step or yard.state(run) == "finished"


def is_over_in_time(yard: Yard, run: str, events: Events) -> bool:
    events.over_in_time()
    return "time_limit" in reasons(yard, run)


@contextmanager
def told(yard: Yard, cluster: Cluster, run: str) -> Iterator[None]:
    """Say how everything stands when something in here does not come: later it is gone."""
    try:
        yield
    except AssertionError:
        print(scene(yard, cluster, run))
        raise


def scene(yard: Yard, cluster: Cluster, run: str) -> str:
    """Why a run may be standing still: what it says, its replicas and leases, the queue, the nodes, the last lines."""
    of_run = "JOIN rollouts_run AS r ON r.id = t.run_id WHERE r.key = %s"
    asked = {
        "run": "SELECT state, reason_code, reason_params, next_step FROM rollouts_run WHERE key = %s",
        "replicas": "SELECT t.id, t.kind, t.slot, t.state, t.reason_code, t.reason_params, t.host, t.job_number,"
        f" t.answered_at, t.begun_at, t.ended_at FROM rollouts_replica AS t {of_run} ORDER BY t.id DESC LIMIT 12",
        "events": "SELECT t.at, t.object_kind, t.object_id, t.to_state, t.reason_code, t.reason_params"
        f" FROM rollouts_event AS t {of_run} AND t.object_kind <> 'group' ORDER BY t.id DESC LIMIT 25",
        "leases": f"SELECT t.holder, count(*), min(t.expires_at) FROM rollouts_lease AS t {of_run} GROUP BY 1",
        "groups": f"SELECT t.state, count(*) FROM rollouts_scoredgroup AS t {of_run} GROUP BY 1",
        "versions": f"SELECT t.version, t.state FROM rollouts_policyversion AS t {of_run} ORDER BY 1 DESC LIMIT 3",
    }
    told = {name: "\n".join(map(str, yard.sql(query, run))) for name, query in asked.items()}
    told |= {"now": yard.sql("SELECT now()")[0][0]}
    for words in (["squeue", "--states=all"], ["sinfo", "--Node", "--long"], ["sinfo", "--list-reasons"]):
        with suppress(AssertionError):  # SLURM is away
            told[" ".join(words)] = cluster.ask(*words)
    logs = [*yard.home.path.glob("logs/*"), *yard.home.path.glob("logs/workers/*")]
    logs += sorted(yard.home.path.glob(f"runs/{run}/replicas/*/log.txt"), key=lambda path: path.stat().st_mtime)[-4:]
    told |= {str(path): path.read_text(errors="replace")[-3000:] for path in logs if path.is_file()}
    return "\n\n".join(f"== {name}\n{words}" for name, words in told.items())


def reasons(yard: Yard, run: str) -> set[str]:
    """Why trainers of a run have ended."""
    return {code for (code,) in yard.sql(f"SELECT t.reason_code FROM rollouts_replica AS t {OF_RUN}", run, "trainer")}


def alive(yard: Yard, run: str) -> set[int]:
    """The replicas of a run that have not ended."""
    query = "SELECT t.id FROM rollouts_replica AS t JOIN rollouts_run AS r ON r.id = t.run_id WHERE r.key = %s"
    return {number for (number,) in yard.sql(f"{query} AND t.ended_at IS NULL", run)}


def at_work_s(yard: Yard, run: str) -> list[float]:
    """Seconds from the start of each trainer's job until it was at work, of those that came so far."""
    query = (
        "SELECT extract(epoch FROM min(e.at) - t.begun_at)::float FROM rollouts_replica AS t"
        " JOIN rollouts_event AS e ON e.object_kind = 'replica' AND e.object_id = t.id AND e.to_state = 'ready'"
        f" {OF_RUN} GROUP BY t.id ORDER BY t.id"
    )
    return [round(seconds, 1) for (seconds,) in yard.sql(query, run, "trainer")]
