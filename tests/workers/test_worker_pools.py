"""How many workers there are to be, by what there is to play."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollouts.models import KeptPool
from rollouts.services import endpoints
from rollouts.services.groups import leases
from rollouts.services.runs import trials
from tests.factories import make_trial
from tests.workers.making import expire, make_run, make_started_run
from workers import given as way
from workers import worker_pools
from workers.fleet.keys import mark_of_workers
from workers.launchers.base import JobSize
from workers.slurm import workers
from workers.slurm.templates import Template, WorkerPool
from workers.slurm.workers import pool_of
from workers.worker_pools import GROW_S, REST_S, SHRINK_S, Lasting, Work, wanted, work

POOL = WorkerPool(minimum=2, maximum=8)
MARK = "0a1b2c3d"
TOKEN = "0b1c2d3e-0000-4000-8000-00000000000a"
SLURM = {
    "sbatch": 'for word; do case "$word" in --job-name=*) name="${word#*=}";; esac; done\n'
    'number=$(($(wc -l < queue) + 1)); echo "$number|RUNNING|None|$name|n1|N/A||" >> queue; echo "$number"',
    "squeue": "cat queue",
    "scancel": 'echo "$*" >> cancelled',
}
"""A SLURM whose jobs run for ever, in a directory: its programs as lines of a shell."""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its directory."""
    for name, lines in SLURM.items():
        (tmp_path / name).write_text(f"#!/bin/sh\ncd {tmp_path}\n{lines}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


@given(st.integers(0, 20), st.builds(Lasting, *[st.floats(0, 1000)] * 3), st.booleans())
def test_there_are_never_fewer_or_more_than_the_pool_may_have(count: int, lasting: Lasting, is_growing: bool) -> None:
    assert POOL.minimum <= wanted(POOL, count, lasting, is_growing=is_growing) <= POOL.most


@pytest.mark.parametrize(
    ("count", "lasting", "is_growing", "expected"),
    [
        (4, Lasting(left_s=GROW_S), False, 6),
        (4, Lasting(left_s=GROW_S), True, 4),  # those that come may do
        (4, Lasting(left_s=GROW_S - 1), False, 4),
        (7, Lasting(left_s=GROW_S), False, 8),
        (5, Lasting(played_s=SHRINK_S), False, 4),
        (5, Lasting(played_s=SHRINK_S - 1), False, 5),
        (8, Lasting(nothing_s=REST_S), False, 2),
        (1, Lasting(), False, 2),  # one was lost
    ],
)
def test_they_grow_with_what_nobody_plays_and_shrink_with_what_there_is(
    count: int, lasting: Lasting, is_growing: bool, expected: int
) -> None:
    assert wanted(POOL, count, lasting, is_growing=is_growing) == expected


def test_a_pool_without_a_maximum_has_its_minimum() -> None:
    assert wanted(WorkerPool(minimum=3), 3, Lasting(left_s=99), is_growing=False) == 3


@pytest.mark.django_db
def test_work_is_left_until_drivers_have_claimed_as_much_as_may_be_played() -> None:
    make_run()
    assert work() == Work(is_there=False, is_left=False), "a run that has not begun has nothing to play"
    run = make_started_run()
    takes_s = run.parsed.environments[0].timeout_s
    assert work() == Work(is_there=True, is_left=True, takes_s=takes_s)
    assert leases.claim(run, holder="a driver", limit=1, lease_s=60.0).claims
    assert work().is_left
    leases.claim(run, holder="a driver", limit=99, lease_s=60.0)
    assert work() == Work(is_there=True, is_left=False, takes_s=takes_s)


@pytest.mark.django_db
def test_work_is_left_where_an_evaluation_has_problems_that_nobody_plays() -> None:
    run = make_started_run(kind="eval", max_steps=1, evaluation__problems=2)
    assert work().is_left
    leases.claim(run, holder="a driver", limit=99, lease_s=60.0)
    assert not work().is_left
    expire(run)
    assert work().is_left, "their driver is gone"


@pytest.mark.django_db
def test_work_is_left_where_somebody_waits_for_a_trial() -> None:
    run = make_started_run()
    leases.claim(run, holder="a driver", limit=99, lease_s=60.0)
    make_trial(run)
    assert work().is_left
    assert trials.claim(run, holder="a driver", limit=1)
    assert not work().is_left


@pytest.mark.django_db
def test_a_pool_of_which_nothing_can_be_started_keeps_no_other_from_its_workers(
    tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.ROLLYARD_HOME = tmp_path
    pools = '[workers.a]\nminimum = 1\ntemplate = "gone"\n[workers.b]\nminimum = 1\n'
    (tmp_path / "cluster.toml").write_text(f"[templates.default]\n{pools}")
    started: list[str] = []
    monkeypatch.setattr(workers, "remembered", lambda mark: {})
    monkeypatch.setattr(workers, "start", lambda *given: started.append(given[-1]))
    monkeypatch.setattr(worker_pools, "given", lambda *_: {})
    kept = worker_pools.WorkerPools()
    kept.keep()
    kept.keep()
    assert started == ["b", "b"], "each time: no job of it is seen"
    told = dict(KeptPool.objects.values_list("name", "complaint"))
    assert "no template gone" in told["a"]
    assert told["b"] == ""


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("states", "is_left", "started"),
    [
        (["COMPLETING", "SUSPENDED", "RUNNING"], False, 1),  # of a minimum of two
        (["COMPLETING", "RUNNING", "RUNNING"], True, 1),  # half as many more
        (["RUNNING", "CONFIGURING"], True, 0),  # that one may do
    ],
)
def test_workers_that_play_no_more_are_replaced_and_are_not_taken_for_ones_that_come(
    slurm: Path, settings: Any, monkeypatch: pytest.MonkeyPatch, states: list[str], is_left: bool, started: int
) -> None:
    settings.ROLLYARD_HOME = slurm
    (slurm / "cluster.toml").write_text("[workers.players]\nminimum = 2\nmaximum = 8\n")
    names = [f"rollyard-worker-players-{mark_of_workers()}-{TOKEN[:-1]}{number}" for number in range(len(states))]
    queued = [f"{n}|{state}|None|{name}|n1|N/A||\n" for n, (state, name) in enumerate(zip(states, names, strict=True))]
    (slurm / "queue").write_text("".join(queued))
    monkeypatch.setattr(worker_pools, "given", lambda *_: {})
    monkeypatch.setattr(worker_pools, "work", lambda: Work(is_there=True, is_left=is_left))
    monkeypatch.setattr(worker_pools, "GROW_S", 0.0)
    worker_pools.WorkerPools().keep()
    assert len((slurm / "queue").read_text().splitlines()) == len(states) + started


@pytest.mark.django_db
def test_workers_that_have_too_little_memory_are_not_started_for_ever(
    slurm: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.ROLLYARD_HOME = slurm
    (slurm / "cluster.toml").write_text("[workers.players]\nminimum = 1\n")
    monkeypatch.setattr(worker_pools, "given", lambda *_: {})
    name = f"rollyard-worker-players-{mark_of_workers()}-{TOKEN[:-1]}"
    states = ["OUT_OF_MEMORY", "FAILED", "OUT_OF_MEMORY"]
    ended = [f"{number}|{state}|None|{name}{number}|n1|N/A||\n" for number, state in enumerate(states)]

    def keep(jobs: list[str]) -> tuple[int, str]:
        """How many are started beside jobs that have ended, and what is said of the pool."""
        (slurm / "queue").write_text("".join(jobs))
        pools.keep()
        started = len((slurm / "queue").read_text().splitlines()) - len(jobs)
        return started, KeptPool.objects.get().complaint

    pools = worker_pools.WorkerPools()
    assert keep(ended[:2]) == (1, "")
    started, complaint = keep(ended)
    assert started == 0
    assert "memory_gib" in complaint
    assert keep(ended[1:]) == (1, ""), "once SLURM has forgotten one"


@pytest.mark.parametrize(
    ("token", "pool"),
    [
        (f"worker-{MARK}-{TOKEN}", ""),
        (f"worker-a-b2-{MARK}-{TOKEN}", "a-b2"),
        ("worker-", ""),
        (f"worker-{TOKEN}-{MARK}-{TOKEN}", TOKEN),
    ],
)
def test_the_pool_of_a_job_is_in_its_name(token: str, pool: str) -> None:
    assert pool_of(token) == pool


def test_workers_of_another_installation_of_the_same_account_are_not_ours(slurm: Path, settings: Any) -> None:
    (slurm / "queue").write_text(f"9|RUNNING|None|rollyard-worker-players-{TOKEN}|n1|N/A||\n")  # without a mark
    longest = "p" * 32

    def start() -> dict[str, str]:
        """By their numbers the pools of those that are ours then."""
        for pool in (longest, ""):
            workers.start(slurm, mark_of_workers(), Template(), JobSize(), {}, 1, pool)
        found = workers.listed(mark_of_workers())
        assert max(map(len, found)) <= 100, "they are keys of rows"
        return {job.number: pool_of(token) for token, job in found.items()}

    assert start() == {"2": longest, "3": ""}
    settings.SECRET_KEY = "the key of another home"
    assert start() == {"4": longest, "5": ""}
    assert workers.stop(mark_of_workers()) == 2
    names = [line.split("|")[3] for line in (slurm / "queue").read_text().splitlines()]
    cancelled = (slurm / "cancelled").read_text()
    assert [name in cancelled for name in names] == [False, False, False, True, True]


@pytest.mark.django_db
@pytest.mark.parametrize("shared", [True, False])
def test_a_worker_on_a_node_plays_with_what_is_set_here(
    settings: Any, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    """The hub's cache has the tokenizers; a sandbox that an administrator chose, and the keys of endpoints."""
    set_here = {"HF_HOME": "/scratch/hf", "ROLLYARD_TOOL_SANDBOX": "gvisor", "JUDGE_KEY": "sk-1", "OTHER_KEY": "no"}
    for name, value in (set_here | {"DATABASE_URL": "", "REDIS_URL": ""}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setattr(way, "_lines", lambda: None)
    endpoints.add(
        name="j",
        base_url="http://127.0.0.1:9/v1",
        model="m",
        key_reference="env:JUDGE_KEY",
        is_for_all=True,
        actor="cli:a",
    )
    found = way.given(WorkerPool(), Template(shared=shared))["environ"]
    assert (found["ROLLYARD_TOOL_SANDBOX"], found["JUDGE_KEY"]) == ("gvisor", "sk-1")
    assert "OTHER_KEY" not in found
    assert found.get("HF_HUB_CACHE") == ("/scratch/hf/hub" if shared else None)
    assert found.get("ROLLYARD_RUNS_DIR") == (str(settings.ROLLYARD_RUNS_DIR) if shared else None)
    of_login = Template(shared=shared, environment={"HF_HOME": "/node/hf", "ROLLYARD_HOME": "/node/home"})
    assert not {"HF_HUB_CACHE", "ROLLYARD_RUNS_DIR"} & way.given(WorkerPool(), of_login)["environ"].keys()
    own = Template(shared=shared, environment={"HF_HUB_CACHE": "/node/hub", "ROLLYARD_TOOL_SANDBOX": "podman"})
    assert not {"HF_HUB_CACHE", "ROLLYARD_TOOL_SANDBOX"} & way.given(WorkerPool(), own)["environ"].keys()
