"""Engines besides bubblewrap: what they say where they cannot run, and what an installed one is told.

None of the three containers is on the machines that run these tests. So a script stands in for the program of each: it
keeps the options it is given and starts what comes after them: it shows that starting, limits and ending fit the rest.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from environments import unconfined
from environments.sandbox import interpreter, tools
from environments.sandbox.bubblewrap import Bubblewrap
from environments.sandbox.call import SandboxCall
from environments.sandbox.tools import SandboxLimits, SandboxResult, SandboxUnavailable, named, run, use
from tests.environments.sandbox.programs import copied_for_others

_STAND_IN = """#!{python}
import json, os, sys
words = sys.argv[1:]
with open({log!r}, "a") as file:
    file.write(json.dumps(words) + "\\n")
if "rm" in words:
    with open({log!r} + ".client") as file:
        is_alive = os.path.exists("/proc/" + file.read())
    os.rename({log!r} + ".client", {log!r} + (".too_early" if is_alive else ".over"))
if "run" in words or "exec" in words:
    with open({log!r} + ".client", "w") as file:
        file.write(str(os.getpid()))
    if "--bundle" in words:
        with open(words[words.index("--bundle") + 1] + "/config.json") as file:
            config = json.load(file)
        place = next(each["source"] for each in config["mounts"] if each["destination"] == "/sandbox")
        command = config["process"]["args"]
    else:
        bound = words[words.index("--volume" if "--volume" in words else "--bind") + 1]
        place, command = bound.split(":")[0], words[words.index("/bin/sh"):]
    os.chdir(place)
    os.execvp(command[0], command)
"""


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file to which the stand-ins write their options, one list a line."""
    log = tmp_path / "told"
    for name in ("podman", "apptainer", "runsc"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(_STAND_IN.format(python=sys.executable, log=str(log)))
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("ROLLYARD_TOOL_IMAGE", "tools:1")
    return log


def called(name: str, **asked: object) -> SandboxResult:
    return asyncio.run(named(name).run(SandboxCall(**asked)))  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "program"), [("podman", "podman"), ("apptainer", "apptainer"), ("gvisor", "runsc")])
def test_an_engine_that_is_not_installed_says_what_to_install(
    name: str, program: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        SandboxUnavailable, match=f"{program} is not installed: install .*, or use the sandbox bubblewrap"
    ):
        named(name)


def test_a_python_that_is_not_there_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match=str(tmp_path)):
        Bubblewrap(str(tmp_path))


def test_a_python_of_somebodys_home_shows_no_more_of_it_than_programs_and_libraries(tmp_path: Path) -> None:
    (tmp_path / "home" / "lib").mkdir(parents=True)
    (tmp_path / "home" / "bin").mkdir()
    (tmp_path / "home" / ".ssh").mkdir()
    python = tmp_path / "home" / "bin" / "python3"
    python.touch()
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    (tmp_path / "venv" / "bin" / "python3").symlink_to(python)
    expected = {tmp_path / "home" / "bin", tmp_path / "home" / "lib"}
    assert {*interpreter.find(str(python)).shown} == expected
    assert {*interpreter.find(str(tmp_path / "venv")).shown} == {*expected, tmp_path / "venv"}
    assert interpreter.find("/usr/bin/env").shown == ()


def test_an_unknown_engine_is_refused_with_those_there_are() -> None:
    with pytest.raises(SandboxUnavailable, match="choose one of bubblewrap, podman, apptainer, gvisor, unconfined"):
        named("docker")


def test_an_engine_of_images_wants_one_named(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROLLYARD_TOOL_IMAGE")
    with pytest.raises(SandboxUnavailable, match="podman pull"):
        named("podman")


@pytest.mark.parametrize("name", ["podman", "gvisor"])
def test_a_program_of_another_engine_gets_and_gives_files(name: str, told: Path) -> None:
    done = called(name, argv=["sh", "-c", "cat in > out; cat"], files={"in": b"f"}, stdin=b"s", returns=["out"])
    assert (done.succeeded, done.stdout, done.files) == (True, b"s", {"out": b"f"}), done.errors


@pytest.mark.parametrize("name", ["podman", "gvisor"])
def test_a_program_of_another_engine_ends_at_its_limits_and_is_removed(name: str, told: Path) -> None:
    limits = SandboxLimits(wall_s=0.3, files=20)
    assert called(name, argv=["sleep", "60"], limits=limits).ended == "wall"
    endless = "i=0; while :; do i=$((i + 1)); : > $i; done"
    assert called(name, argv=["sh", "-c", endless], limits=SandboxLimits(files=20)).ended == "files"
    words = [json.loads(line) for line in told.read_text().splitlines()]
    removals = [line for line in words if {"rm", "delete"} & {*line}]
    starts = [line for line in words if "run" in line]
    assert len(removals) == len(starts) == 2
    container = starts[0][starts[0].index("--name") + 1] if name == "podman" else starts[0][-1]
    assert container == removals[0][-1]
    assert [path for path in Path("/tmp").glob("rollyard-tool-*") if str(path) in told.read_text()] == []


def test_files_without_a_name_count_as_others_do(told: Path) -> None:
    some = "".join(f"exec {number}> x; rm x; head -c 400000 /dev/zero >&{number}; " for number in (3, 4, 5))
    asked = {"argv": ["sh", "-c", f"{some} sleep 60"], "limits": SandboxLimits(wall_s=20, disk_bytes=10**6)}
    assert called("gvisor", **asked).ended == "files"


def test_podman_removes_a_container_when_nobody_makes_it_any_more(told: Path) -> None:
    called("podman", argv=["sleep", "60"], limits=SandboxLimits(wall_s=0.3))
    assert [path.suffix for path in told.parent.glob("told.*")] == [".over"]


@pytest.mark.skipif(os.geteuid() != 0, reason="ONLY ROOT gives a directory to another account")
def test_who_runs_in_gvisor_may_enter_its_root_and_its_directory_whatever_our_umask(told: Path) -> None:
    before = os.umask(0o077)
    try:
        made = named("gvisor").make(SandboxCall(argv=["true"]))
    finally:
        os.umask(before)
    with contextlib.closing(made):
        bundle = Path(made.argv[made.argv.index("--bundle") + 1])
        config = json.loads((bundle / "config.json").read_text())
        assert (bundle / "rootfs").stat().st_mode & 0o777 == 0o755
        [place] = [Path(each["source"]) for each in config["mounts"] if each["destination"] == config["process"]["cwd"]]
        assert (place.stat().st_uid, place.stat().st_mode & 0o700) == (config["process"]["user"]["uid"], 0o700)


def test_podman_closes_the_network_the_root_and_what_exceeds(told: Path) -> None:
    called("podman", argv=["true"], limits=SandboxLimits(memory_bytes=10**8, processes=7))
    line = " ".join(json.loads(told.read_text().splitlines()[0]))
    for closed in ("--network none", "--read-only", "--cap-drop all", "no-new-privileges", "--pull never", " tools:1 "):
        assert closed in line
    for bound in ("--pids-limit 7", "--memory 100000000", "--memory-swap 100000000", "fsize=67108864", "core=0"):
        assert bound in line
    assert "--user 0" not in line


@pytest.mark.skipif(os.geteuid() != 0, reason="ONLY ROOT is refused")
def test_root_runs_nothing_where_it_would_stay_root(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(unconfined.VARIABLE, "1")
    for name in ("apptainer", "unconfined"):
        with pytest.raises(SandboxUnavailable, match="root"):
            named(name)


def test_without_a_sandbox_nothing_runs_unless_the_setting_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(unconfined.VARIABLE, raising=False)
    with pytest.raises(SandboxUnavailable, match="ROLLYARD_UNSAFE_NO_SANDBOX=1"):
        named("unconfined")


def test_the_variable_chooses_the_engine_and_use_comes_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Answering:
        async def run(self, call: SandboxCall) -> SandboxResult:
            return SandboxResult(ended="exit", exit_code=0, stdout=call.argv[0].encode())

    monkeypatch.setenv(tools.VARIABLE, "nothing")
    use(None)
    with pytest.raises(SandboxUnavailable, match="no sandbox 'nothing'"):
        asyncio.run(run(["x"]))
    try:
        use(Answering())
        assert asyncio.run(run(["x"])).stdout == b"x"
    finally:
        use(None)


def test_an_environment_apart_has_the_same_engine_and_one_that_cannot_show_its_python_runs_nothing(
    told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(tools.VARIABLE, "podman")
    use(None)
    try:
        assert asyncio.run(tools.showing("").run(SandboxCall(argv=["true"]))).succeeded
        assert "--pull" in told.read_text()
        with pytest.raises(SandboxUnavailable, match="bubblewrap alone shows programs the Python of /venv/bin/python"):
            asyncio.run(tools.showing("/venv/bin/python").run(SandboxCall(argv=["true"])))
    finally:
        use(None)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="ONLY ROOT can become the plain account that this tries")
def test_unconfined_programs_of_a_plain_account_have_limits_and_leave_nothing(open_directory: Path) -> None:
    copied = copied_for_others(open_directory)
    script = (
        "import asyncio, sys, time\n"
        "from environments.sandbox.tools import SandboxLimits, run\n"
        "def end(*argv, **limits): return asyncio.run(run(argv, limits=SandboxLimits(**limits)))\n"
        "print(end('sh', '-c', 'cat > x; echo hello').output, end='')\n"
        "print(end('sleep', '60', wall_s=.3).ended, end('yes').ended)\n"
        "print(end('sh', '-c', 'mkdir x && chmod 300 x && sleep 60', wall_s=20).ended)\n"
        "print(end('sh', '-c', 'setsid sleep 98761 > /dev/null 2>&1 & exit 3').exit_code)\n"
    )
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(copied), unconfined.VARIABLE: "1"}
    become = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "/usr/bin/python3", "-c", script]
    done = subprocess.run(become, capture_output=True, text=True, timeout=60, check=False, env=environ)
    assert done.stdout.split() == ["hello", "wall", "output", "files", "3"], done.stderr
    assert subprocess.run(["pgrep", "-f", "sleep 98761"], check=False, stdout=subprocess.DEVNULL).returncode == 1
