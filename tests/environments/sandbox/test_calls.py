"""What a call of the sandbox gives: outputs, files, endings."""

import asyncio
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable

import pytest

from environments.sandbox.tools import SandboxLimits, SandboxResult, run
from tests.environments.sandbox.programs import left_of, needs_sandbox

pytestmark = needs_sandbox


def called(*argv: str, **asked: object) -> SandboxResult:
    return asyncio.run(run(argv, **asked))  # type: ignore[arg-type]


def test_a_program_gets_its_files_and_stdin_and_gives_its_outputs_and_files() -> None:
    program = "import sys; from data.table import rows; print(sum(rows), sys.stdin.read(), end='')\n"
    program += "print('odd', file=sys.stderr, end=''); open('data/out.bin', 'wb').write(bytes(range(256)))"
    done = called(
        "python3",
        "main.py",
        files={"main.py": program, "data/table.py": b"rows = [1, 2, 3]"},
        stdin="and more",
        returns=["data/out.bin", "nowhere"],
    )
    assert done.succeeded
    assert (done.exit_code, done.signal, done.ended) == (0, None, "exit")
    assert (done.output, done.errors) == ("6 and more", "odd")
    assert done.files == {"data/out.bin": bytes(range(256))}
    assert done.missing == {"nowhere": "No such file or directory"}


def test_files_that_were_given_can_be_changed_and_scripts_started() -> None:
    files = {"run.sh": "#!/bin/sh\necho more >> notes && rm run.sh && ls", "notes": "some "}
    done = called("./run.sh", files=files, returns=["notes"])
    assert (done.output, done.files) == ("notes\n", {"notes": b"some more\n"})


def test_the_interpreter_that_runs_this_is_there_with_its_packages() -> None:
    done = called("python3", "-c", "import msgspec, sys; print(sys.version)")
    assert done.output.strip() == sys.version


@pytest.mark.parametrize(
    ("script", "exit_code", "signal"),
    [("exit 3", 3, None), ("kill -9 $$", None, 9), ("kill -TERM $$", None, 15), ("exit 255", 255, None)],
)
def test_an_end_has_its_code_or_its_signal(script: str, exit_code: int | None, signal: int | None) -> None:
    done = called("sh", "-c", script)
    assert (done.ended, done.exit_code, done.signal) == ("exit", exit_code, signal)
    assert not done.succeeded


def test_a_program_that_is_not_there_ends_as_in_a_shell() -> None:
    done = called("no-such-program")
    assert done.exit_code == 127
    assert "no-such-program" in done.errors


def test_of_a_long_output_the_beginning_is_kept_and_of_errors_the_end() -> None:
    limits = SandboxLimits(kept_bytes=1000)
    done = called("sh", "-c", "seq 10000; seq 10000 >&2; exit 4", limits=limits)
    assert (done.ended, done.exit_code) == ("exit", 4)
    assert (len(done.stdout), len(done.stderr)) == (1000, 1000)
    assert (done.stdout_was_cut, done.stderr_was_cut) == (True, True)
    assert done.output.startswith("1\n2\n3\n")
    assert done.errors.endswith("9999\n10000\n")


def test_a_long_stdin_arrives_whole_or_is_dropped() -> None:
    stdin = bytes(5_000_000)
    assert called("wc", "-c", stdin=stdin).output.strip() == "5000000"
    assert called("true", stdin=stdin).succeeded


def test_a_program_has_few_variables_and_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLYARD_SECRET_KEY", "of the control plane")
    names = {line.partition("=")[0] for line in called("env").output.splitlines()}
    expected = {"PATH", "HOME", "TMPDIR", "LANG", "PWD", "PYTHONDONTWRITEBYTECODE", "OMP_NUM_THREADS"}
    assert names == expected | {"OPENBLAS_NUM_THREADS"}


@pytest.mark.parametrize(
    "name",
    ["../out", "/etc/passwd", "a/../../b", "a//b", ".", "", "a/.", "line\nbreak", "zero\0", "x" * 300, "d/" * 20 + "f"],
)
def test_names_that_lead_out_or_cannot_be_are_refused(name: str) -> None:
    for asked in ({"files": {name: b""}}, {"returns": [name]}):
        with pytest.raises(ValueError, match="no name of a file"):
            called("true", **asked)


@pytest.mark.parametrize(
    "asked",
    [
        {"argv": []},
        {"argv": [""]},
        {"argv": ["a\0b"]},
        {"argv": ["true"], "files": {"a": b"", "a/b": b""}},
        {"argv": ["true"], "files": {"a": bytes(2000)}, "limits": SandboxLimits(disk_bytes=1000)},
        {"argv": ["true"], "files": {str(number): b"" for number in range(100)}},
    ],
)
def test_what_cannot_be_run_is_refused(asked: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"sandbox|disk_bytes|directory"):
        asyncio.run(run(**asked))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_limits_are_numbers_above_nothing(value: float) -> None:
    with pytest.raises(ValueError, match="wall_s"):
        SandboxLimits(wall_s=value)


def test_eight_programs_run_at_once_and_see_nothing_of_each_other() -> None:
    # Each waits until a file is there that only itself can have made, so they overlap.
    program = "import os, sys, time; open(sys.argv[1], 'w'); time.sleep(.3); print(sorted(os.listdir('.')))"

    async def all_of_them() -> list[SandboxResult]:
        return await asyncio.gather(*(run(["python3", "-c", program, f"f{each}"]) for each in range(8)))

    done = asyncio.run(all_of_them())
    assert [each.output.strip() for each in done] == [f"['f{each}']" for each in range(8)]


def test_event_loops_after_each_other_share_the_engine() -> None:
    assert [called("echo", str(each)).output for each in range(3)] == ["0\n", "1\n", "2\n"]


def test_cancelling_kills_the_program_before_it_returns() -> None:
    marker = uuid.uuid4().hex

    async def cancelled() -> None:
        task = asyncio.create_task(run(["python3", "-c", "import time; time.sleep(60)", marker]))
        while len(left_of(marker)) < 2:  # bubblewrap's own processes have it too
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert left_of(marker) == []


@pytest.mark.parametrize("after_s", [0, 0.001, 0.002, 0.004, 0.008, 0.016])
def test_cancelling_while_the_sandbox_is_made_leaves_nothing_of_it(after_s: float) -> None:
    marker = uuid.uuid4().hex

    async def cancelled() -> None:
        task = asyncio.create_task(run(["python3", "-c", "import time; time.sleep(60)", marker]))
        await asyncio.sleep(after_s)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert left_of(marker) == []


def test_a_timeout_around_a_call_kills_it() -> None:
    marker = uuid.uuid4().hex

    async def timed() -> None:
        async with asyncio.timeout(0.2):
            await run(["python3", "-c", "import time; time.sleep(60)", marker])

    with pytest.raises(TimeoutError):
        asyncio.run(timed())
    assert left_of(marker) == []


def test_a_caller_that_is_killed_takes_its_program_along() -> None:
    marker = uuid.uuid4().hex
    script = "import asyncio, sys; from environments.sandbox.tools import run\n"
    script += f"asyncio.run(run(['python3', '-c', 'print(1, flush=True); import time; time.sleep(60)', '{marker}']))"
    with subprocess.Popen([sys.executable, "-c", script]) as caller:
        _until(lambda: any(line.startswith("python3") for line in left_of(marker)))
        caller.kill()
    _until(lambda: not left_of(marker))


def test_calls_leave_no_descriptor_open_however_they_end() -> None:
    async def some() -> None:
        await asyncio.gather(*(run(["true"]) for _ in range(4)), run(["sleep", "9"], limits=SandboxLimits(wall_s=0.1)))
        await asyncio.gather(run(["yes"]), run(["nothing-of-the-sort"]), run(["cat"], {"x": "y"}, returns=["x", "z"]))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await run(["sleep", "9"])

    asyncio.run(some())
    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(some())
    _until(lambda: len(os.listdir("/proc/self/fd")) <= before)  # a call that was cancelled is cleaned up by a thread


def _until(happens: Callable[[], bool], within_s: float = 20) -> None:
    give_up_at = time.monotonic() + within_s
    while not happens():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)
