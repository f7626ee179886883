"""What is said of a job, whatever SLURM and the job's own files say, in any order."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lanes import amount
from workers.fleet import lifecycle
from workers.launchers.base import End, Handle, Observation
from workers.slurm import states
from workers.slurm.files import Written
from workers.slurm.launcher import SlurmLauncher
from workers.slurm.queue import Job, Queue, _read
from workers.slurm.states import judge

LIVING = ["PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING", "STOPPED", "RESIZING", "SIGNALING"]
ENDED = ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL"]
REASONS = ["None", "Resources", "Priority", "JobHeldUser", "BeginTime", "QOSMaxJobsPerUserLimit", "{odd} words"]

jobs = st.builds(Job, st.just("7"), st.sampled_from(LIVING + ENDED), st.sampled_from(REASONS), st.just("n1"))
exits = st.fixed_dictionaries({"code": st.none() | st.integers(-15, 9), "end": st.sampled_from(["", "asked", "limit"])})
writings = st.builds(
    Written,
    exit=st.none() | exits,
    exit_age_s=st.none() | st.floats(0, 1e6),
    end=st.sampled_from([None, End.ASKED, End.TIME_LIMIT, End.CANCELLED]),
    was_stopped=st.booleans(),
    base_url=st.just("http://n1:1"),
    has_begun=st.booleans(),
    heartbeat_age_s=st.none() | st.floats(0, 1e6),
    silent_s=st.none() | st.floats(0, 1e6),
)
ages = st.floats(0, 1e6)


@given(st.none() | jobs, writings, st.none() | ages, ages)
def test_every_job_has_one_thing_said_of_it(
    job: Job | None, written: Written, absent_s: float | None, submitted_s: float
) -> None:
    seen = judge(job, written, absent_s=None if job else absent_s, submitted_s=submitted_s)
    if seen.alive:
        assert job is None or not job.has_ended, "an ended job keeps nobody waiting"
        assert not (seen.waiting and written.has_begun) or (job is not None and job.state not in {"RUNNING"})
    else:
        assert not seen.waiting
        assert isinstance(seen.end, End)


@given(writings, ages)
def test_silence_of_slurm_ends_nothing_that_has_not_said_so_itself(written: Written, submitted_s: float) -> None:
    seen = judge(None, written, absent_s=None, submitted_s=submitted_s)
    assert seen.alive == (written.exit is None)


@given(st.floats(0, states.ABSENT_S, exclude_max=True), ages)
def test_job_at_work_is_not_given_up_before_five_minutes_of_absence(absent_s: float, submitted_s: float) -> None:
    assert judge(None, Written(has_begun=True), absent_s=absent_s, submitted_s=submitted_s).alive
    beating = Written(has_begun=True, silent_s=states.SILENT_S)
    assert judge(None, beating, absent_s=absent_s, submitted_s=submitted_s).alive
    gone = judge(None, Written(has_begun=True), absent_s=states.ABSENT_S, submitted_s=submitted_s)
    assert (gone.alive, gone.end) == (False, End.VANISHED)


def test_a_job_that_slurm_lost_and_that_gives_no_sign_of_life_is_given_up_after_a_minute() -> None:
    silent = Written(has_begun=True, silent_s=states.SILENT_S + 1)
    gone = judge(None, silent, absent_s=states.SUBMITTED_S, submitted_s=99)
    assert (gone.alive, gone.end) == (False, End.VANISHED)
    assert judge(None, silent, absent_s=states.SUBMITTED_S - 1, submitted_s=99).alive, "one look may be wrong"
    assert judge(None, silent, absent_s=None, submitted_s=99).alive, "SLURM does not answer"


@given(st.sampled_from(["asked", "abandoned", ""]), st.sampled_from(["PREEMPTED", "NODE_FAIL", "TIMEOUT", "CANCELLED"]))
def test_who_took_a_job_is_what_slurm_says_at_its_end(end: str, state: str) -> None:
    written = Written(exit={"code": -15, "end": end}, has_begun=True, end=End.CANCELLED)
    going = judge(Job("7", "COMPLETING", "None", "n1"), written, absent_s=None, submitted_s=9)
    assert going.alive
    seen = judge(Job("7", state, "None", "n1"), written, absent_s=None, submitted_s=9)
    expected = {"PREEMPTED": End.PREEMPTED, "NODE_FAIL": End.NODE_FAILED, "TIMEOUT": End.TIME_LIMIT}
    assert seen.end is expected.get(state, End.CANCELLED)


@pytest.mark.parametrize(("said", "end"), [("", End.DIED), ("asked", End.CANCELLED)])
def test_an_end_that_was_written_a_minute_ago_is_believed_of_a_job_that_slurm_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, end: End
) -> None:
    job, file = Job("7", "COMPLETING", "None", "n1"), tmp_path / "exit.json"
    monkeypatch.setattr(Queue, "jobs", lambda queue: {"token": job})
    file.write_text(json.dumps({"token": "token", "code": 3, "end": said}))
    assert SlurmLauncher(tmp_path).poll(Handle("token", tmp_path)).alive, "SLURM may yet say by what it was ended"
    os.utime(file, (time.time() - states.EXIT_S,) * 2)
    seen = SlurmLauncher(tmp_path).poll(Handle("token", tmp_path))
    assert (seen.alive, seen.exit_code, seen.end, seen.job) == (False, 3, end, "7")
    assert SlurmLauncher(tmp_path).living() == set(), "no look for orphans waits for it"


@pytest.mark.parametrize(
    ("job", "has_spoken", "is_given_up"),
    [
        (Job("7", "RUNNING", "None", "n1"), False, True),
        (Job("7", "COMPLETING", "None", "n1"), False, True),
        (Job("7", "RUNNING", "None", "n1"), True, False),
        (Job("7", "RUNNING", "None", "n1", comment="http://n1:1"), False, False),  # it waits for files
        (Job("7", "CONFIGURING", "None", "n1"), False, False),
        (Job("7", "PENDING", "Priority", ""), False, False),
    ],
)
def test_a_job_that_has_its_node_does_not_hold_it_when_its_agent_never_speaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: Job, has_spoken: bool, is_given_up: bool
) -> None:
    monkeypatch.setattr(Queue, "jobs", lambda queue: {"token": job})
    monkeypatch.setattr(states, "START_S", 0.0)
    if has_spoken:
        (tmp_path / "agent.json").write_text(json.dumps({"token": "token", "base_url": ""}))
    launcher, handle = SlurmLauncher(tmp_path), Handle("token", tmp_path)
    assert launcher.poll(handle).alive
    seen = launcher.poll(handle)
    assert seen.alive != is_given_up
    if is_given_up:
        assert (seen.end, seen.node) == (End.UNSTARTED, "n1")


def test_a_job_whose_node_hangs_before_it_wrote_an_end_is_given_up_after_five_minutes_of_silence() -> None:
    job, more = Job("7", "COMPLETING", "None", "n1"), states.ABSENT_S + 1
    written = Written(has_begun=True, silent_s=states.ABSENT_S)
    assert judge(job, written, absent_s=None, submitted_s=999, completing_s=more).alive
    silent = written._replace(silent_s=more)
    assert judge(job, silent, absent_s=None, submitted_s=999, completing_s=states.ABSENT_S).alive, "it was suspended"
    seen = judge(job, silent, absent_s=None, submitted_s=999, completing_s=more)
    assert (seen.alive, seen.end, seen.heartbeat_age_s) == (False, End.SILENT, more)
    suspended = judge(job._replace(state="SUSPENDED"), written._replace(silent_s=1e6), absent_s=None, submitted_s=1e6)
    assert suspended.alive, "it goes on"


def test_a_job_that_completes_after_a_long_suspension_has_time_to_write_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queued = {"token": Job("7", "SUSPENDED", "None", "n1")}
    monkeypatch.setattr(Queue, "jobs", lambda queue: queued)
    for name in ("agent.json", "heartbeat"):
        (tmp_path / name).write_text(json.dumps({"token": "token", "base_url": ""}))
        os.utime(tmp_path / name, (time.time() - 2 * states.ABSENT_S,) * 2)
    launcher, handle = SlurmLauncher(tmp_path), Handle("token", tmp_path)
    assert launcher.poll(handle).alive
    queued["token"] = queued["token"]._replace(state="COMPLETING")
    assert launcher.poll(handle).alive
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + 2 * states.ABSENT_S)
    assert launcher.poll(handle).end is End.SILENT


@given(st.sampled_from(["asked", "abandoned", ""]), st.none() | st.just(End.CANCELLED))
def test_node_of_several_that_is_ended_for_anothers_sake_has_died(end: str, why: End | None) -> None:
    job = Job("7", "FAILED", "None", "n[1-2]")
    for exit_file in (None, {"code": -15, "end": end}):
        written = Written(exit=exit_file, has_begun=True, end=why if exit_file else None, is_spread=True)
        assert judge(job, written, absent_s=None, submitted_s=9).end is End.DIED


def test_node_whose_agent_ended_it_for_anothers_sake_has_died_whatever_slurm_remembers() -> None:
    written = Written(exit={"code": -15, "end": "asked"}, has_begun=True, end=End.DIED, is_spread=True)
    for job, absent_s in ((Job("7", "FAILED", "None", "n[1-2]"), None), (None, 3.0)):
        assert judge(job, written, absent_s=absent_s, submitted_s=9).end is End.DIED


@given(st.lists(st.text(alphabet="|abc \n\t%0", max_size=60), max_size=amount(10, 100)))
def test_other_jobs_names_are_never_taken_for_ours(lines: list[str]) -> None:
    assert _read("\n".join(lines)) == {}


@pytest.mark.parametrize("end", End)
def test_every_end_is_a_sentence_with_its_last_words(end: End) -> None:
    excess = {"what": "bytes of log", "used": 2, "allowed": 1, "setting": "X"} if end is End.LIMIT else {}
    seen = Observation(False, 1, 70.0, end, excess)
    assert str(lifecycle.reason_of(seen, "the last words", "trainer"))


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("", ""),
        ("n1", "n1"),
        ("gpu-a,gpu-b", "gpu-a"),
        ("n[1-3]", "n1"),
        ("gpu-[07,09-12]", "gpu-07"),
        ("a,n[1-2]", "a"),
        ("n[1-2],a", "n1"),
    ],
)
def test_first_of_several_nodes_is_read_from_how_slurm_writes_them(nodes: str, first: str) -> None:
    assert Job("7", "RUNNING", "None", nodes).first_node == first


def test_last_of_several_jobs_under_one_name_counts_and_a_living_one_before_it() -> None:
    name = "rollyard-3b0a5c3e-0000-4000-8000-000000000001"
    lines = ["7|FAILED|None", "9|RUNNING|None", "8|FAILED|None"]
    said: dict[str, Any] = _read("\n".join(f"{line}|{name}|n1|N/A||" for line in lines))
    assert [job.number for job in said.values()] == ["9"]
