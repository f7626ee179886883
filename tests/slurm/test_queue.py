"""How SLURM's programs are asked, and what they say is read: stand-ins for them, in a directory."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from rollouts.states import RunState
from tests.factories import make_run
from workers import convergence
from workers.fleet import jobs
from workers.fleet.lifecycle import UnrecoverableError
from workers.launchers.base import JobSize, LauncherAway, LaunchError, LaunchSpec
from workers.slurm import queue
from workers.slurm.launcher import SlurmLauncher
from workers.slurm.queue import Job, Queue

TOKEN = "0b1c2d3e-0000-4000-8000-00000000000a"
Program = Callable[[str, str], None]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Makes one of these lines of a shell."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def write(name: str, lines: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{lines}\n")
        (tmp_path / name).chmod(0o755)

    return write


def test_a_job_of_somebody_whose_name_is_no_text_hides_none_of_ours(program: Program) -> None:
    ours = f"7|RUNNING|None|rollyard-{TOKEN}|n1|N/A||"
    program("squeue", f"printf '6|RUNNING|None|caf\\351|n1|N/A||\\n{ours}\\n'")
    assert Queue().jobs() == {TOKEN: Job("7", "RUNNING", "None", "n1")}


def test_a_control_plane_in_an_allocation_gives_nothing_of_it_to_its_jobs(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = {"SLURM_CONF": "/etc/slurm/a.conf", "SLURM_CLUSTERS": "a", "SLURM_JWT": "b", "ROLLYARD_JOB": "{}"}
    theirs = {"SLURM_MEM_PER_CPU": "1", "SLURM_JOB_ID": "7", "SBATCH_PARTITION": "low", "SQUEUE_ACCOUNT": "lab"}
    for name, value in {**ours, **theirs, "SLURM_TIME_FORMAT": "relative"}.items():
        monkeypatch.setenv(name, value)
    program("sbatch", f"env > {tmp_path}/env; echo 8")
    assert queue.submit([], "", {"ROLLYARD_JOB": "{}"}) == "8"
    given = dict(line.partition("=")[::2] for line in (tmp_path / "env").read_text().splitlines())
    assert given.keys() & theirs.keys() == set()
    assert ours.items() <= given.items()
    assert given["SLURM_TIME_FORMAT"] == "%s"


@pytest.mark.parametrize(
    "words",
    [
        "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
        "Required partition not available (inactive or drain)",
        "Unable to create job record, try again",
        "System submissions disabled",
        "Invalid user id",
        "what a plugin of the cluster says",
    ],
)
def test_a_job_that_slurm_may_take_another_time_is_tried_again(program: Program, tmp_path: Path, words: str) -> None:
    program("sbatch", f'echo "sbatch: error: Batch job submission failed: {words}" >&2; exit 1')
    with pytest.raises(LauncherAway, match=re.escape(f"not take the job now: Batch job submission failed: {words}")):
        SlurmLauncher(tmp_path).start(LaunchSpec("token", tmp_path / "replica", ["true"], template="default"))


@pytest.mark.parametrize(
    "words",
    [
        "Batch job submission failed: Invalid account or account/partition combination specified",
        "Batch job submission failed: Invalid feature specification",
        "Batch job submission failed: Invalid partition name specified",
        "Batch job submission failed: Invalid qos specification",
        "Batch job submission failed: Node count specification invalid",
        "Batch job submission failed: Requested node configuration is not available",
        "Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)",
        "Batch job submission failed: User's group not permitted to use this partition",
        "Invalid generic resource (gres) specification",
        "Memory specification can not be satisfied",
    ],
)
def test_a_job_that_slurm_will_never_take_is_not(program: Program, tmp_path: Path, words: str) -> None:
    banner = "welcome to this cluster " * 20
    program("sbatch", f'echo "{banner}" >&2; echo "sbatch: error: {words}" >&2; exit 1')
    with pytest.raises(LaunchError, match=re.escape(words)) as refused:
        SlurmLauncher(tmp_path).start(LaunchSpec("token", tmp_path / "replica", ["true"], template="default"))
    assert not isinstance(refused.value, LauncherAway)


@pytest.mark.parametrize(
    ("template", "is_taken"),
    [("", True), ("partition = 'a'", False), ("partition = 'b'", True), ("partition = 'a,b'", True)],
)
def test_a_job_that_no_node_can_have_is_refused_unless_others_of_its_partition_are_down(
    program: Program, tmp_path: Path, template: str, is_taken: bool
) -> None:
    (tmp_path / "cluster.toml").write_text(f"[templates.default]\n{template}\n")
    program("sbatch", "echo 'allocation failure: Requested node configuration is not available' >&2; exit 1")
    program("sinfo", "echo 'a|idle|3'; echo 'b|idle|2'; echo 'b|drained|1'")
    complaint = SlurmLauncher(tmp_path).complaint("default", [JobSize()])
    assert (complaint == "") == is_taken


@pytest.mark.parametrize(
    ("words", "passes"),
    [
        ("Required partition not available (inactive or drain)", True),
        ("Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", True),
        ("Invalid partition name specified", False),
        ("what a plugin of the cluster says", False),
    ],
)
@pytest.mark.django_db
def test_a_run_begins_once_slurm_takes_what_it_puts_off_and_ends_by_all_else(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, passes: bool
) -> None:
    program("sbatch", f'echo "allocation failure: {words}" >&2; exit 1')
    run = make_run(state=RunState.PENDING)
    monkeypatch.setattr(jobs, "complaint", lambda _: SlurmLauncher(tmp_path).complaint("default", [JobSize()]))
    if passes:
        assert not convergence._would_be_taken(run)
        assert f"takes its jobs: by the template default: allocation failure: {words}" in str(
            run.events.latest("id").reason
        )
    else:
        with pytest.raises(UnrecoverableError, match=re.escape(words)):
            convergence._would_be_taken(run)
