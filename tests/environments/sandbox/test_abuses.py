"""Programs that a policy may write, by accident or because it pays: each ends in time, and nothing of it is left."""

import os
import socket
from pathlib import Path

import pytest

from environments.sandbox.tools import SandboxLimits
from tests.environments.sandbox.programs import needs_sandbox, played, told

pytestmark = [needs_sandbox, pytest.mark.slow]


def test_a_fork_bomb_is_held_and_killed() -> None:
    done = played(
        """
        import os
        most = 0
        while True:
            try:
                os.fork()
            except OSError:
                print(len([name for name in os.listdir("/proc") if name.isdigit()]), flush=True)
        """,
        limits=SandboxLimits(wall_s=1, processes=32, output_bytes=10**9, cpu_s=60),
    )
    assert done.ended == "wall"
    # Bubblewrap's own first process belongs to somebody else where we are root.
    assert max(map(int, done.output.split()[:-1])) <= 33


def test_a_program_that_takes_too_much_memory_is_told_so() -> None:
    done = played("bytearray(2**31)")
    assert (done.ended, done.exit_code) == ("exit", 1)
    assert "MemoryError" in done.errors


@pytest.mark.parametrize(
    "program",
    [
        """
        import os, time
        for _ in range(8):
            if not os.fork():
                kept = b"x" * (60 * 2**20)
                time.sleep(60)
        time.sleep(60)
        """,
        """
        import mmap, time
        shared = mmap.mmap(-1, 400 * 2**20)
        for offset in range(0, len(shared), 4096):
            shared[offset] = 1
        time.sleep(60)
        """,
    ],
    ids=["in many processes", "in shared memory"],
)
def test_memory_is_counted_of_all_processes_together(program: str) -> None:
    done = played(program, limits=SandboxLimits(wall_s=10, memory_bytes=256 * 2**20))
    assert done.ended == "memory"
    assert done.wall_s < 5


def test_pages_that_processes_share_count_once() -> None:
    program = """
        import os, time
        kept = b"x" * (100 * 2**20)
        children = [os.fork() for _ in range(4)]
        if 0 in children:
            time.sleep(.5)
            os._exit(0)
        for child in children:
            os.waitpid(child, 0)
    """
    assert played(program, limits=SandboxLimits(memory_bytes=256 * 2**20)).succeeded


def test_endless_output_ends_at_once() -> None:
    done = played("while True: print('x' * 1000)")
    assert (done.ended, done.stdout_was_cut, len(done.stdout)) == ("output", True, 64 * 1024)
    assert done.wall_s < 1


def test_whoever_ignores_signals_is_killed() -> None:
    program = """
        import signal, time
        for each in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(each, signal.SIG_IGN)
        print("ready", flush=True)
        while True:
            time.sleep(1)
    """
    done = played(program, limits=SandboxLimits(wall_s=0.5))
    assert (done.ended, done.output) == ("wall", "ready\n")


def test_whoever_computes_without_end_is_killed_for_it_with_all_helpers() -> None:
    done = played(
        "import os\nfor _ in range(3): os.fork()\nwhile True: pass", limits=SandboxLimits(wall_s=20, cpu_s=0.5)
    )
    assert done.ended == "cpu"
    assert done.wall_s < 3


def test_a_daemon_dies_with_its_program_and_does_not_hold_it() -> None:
    program = """
        import os, time
        if not os.fork():
            os.setsid()
            if not os.fork():
                time.sleep(60)
            os._exit(0)
        os.wait()
        print("done")
    """
    done = played(program)
    assert (done.succeeded, done.output) == (True, "done\n")
    assert done.wall_s < 1


def test_whoever_kills_everything_kills_only_itself() -> None:
    program = """
        import os, signal, time
        if not os.fork():
            time.sleep(60)
        os.kill(-1, signal.SIGKILL)
        os.wait()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = played(program)
    assert (done.ended, done.signal, done.errors) == ("exit", 9, "")


def test_a_full_directory_is_an_error_of_the_program() -> None:
    seen = told(
        """
        import json
        codes = {}
        for name in ("/tmp/big", "/dev/shm/big"):
            try:
                for part in range(100):
                    with open(f"{name}{part}", "wb") as file:
                        file.write(bytes(2**20))
            except OSError as error:
                codes[name] = [error.errno, part]
        print(json.dumps(codes))
        """,
        limits=SandboxLimits(disk_bytes=4 * 2**20),
    )
    assert seen == {"/tmp/big": [28, 4], "/dev/shm/big": [28, 4]}


@pytest.mark.parametrize("place", ["/tmp", "/dev/shm"])
def test_whoever_makes_files_without_end_is_killed(place: str) -> None:
    done = played(
        f"import itertools\nfor each in itertools.count(): open(f'{place}/{{each}}', 'w').close()",
        limits=SandboxLimits(wall_s=10, files=5000),
    )
    assert done.ended == "files"


def test_there_is_no_network() -> None:
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as abstract:
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        abstract.bind(name := f"\0rollyard-test-{os.getpid()}")
        abstract.listen()
        seen = told(
            f"""
            import json, socket
            def reaches(family, address):
                with socket.socket(family) as client:
                    client.settimeout(1)
                    try:
                        client.connect(address)
                    except OSError as error:
                        return type(error).__name__
                    return "connected"
            print(json.dumps([
                reaches(socket.AF_INET, ("127.0.0.1", {tcp.getsockname()[1]})),
                reaches(socket.AF_INET, ("192.0.2.1", 80)),
                reaches(socket.AF_UNIX, {name!r}),
                [name for _, name in socket.if_nameindex()],
            ]))
            """
        )
    assert seen == ["ConnectionRefusedError", "OSError", "ConnectionRefusedError", ["lo"]]


def test_nothing_of_the_machine_can_be_read(tmp_path: Path) -> None:
    key = tmp_path / "secret_key"
    key.write_text("the key that signs sessions")
    places = [str(key), "/etc/shadow", "/root/.ssh", "/home", "/var", "/run", "/sys", str(Path.cwd()) + "/README.md"]
    seen = told(
        f"""
        import json, os
        print(json.dumps([place for place in {places!r} if os.path.exists(place)]))
        """
    )
    assert seen == []


def test_nothing_but_its_own_directories_can_be_written() -> None:
    seen = told(
        """
        import json, os
        def writes(place):
            try:
                with open(place, "a"):
                    return True
            except OSError:
                return False
        places = ["/x", "/usr/x", "/etc/passwd", "/dev/x", "/proc/sys/kernel/core_pattern", "/proc/1/oom_score_adj"]
        print(json.dumps([place for place in [*places, "/tmp/x", "/dev/shm/x"] if writes(place)]))
        """
    )
    assert seen == ["/tmp/x", "/dev/shm/x"]


def test_other_processes_cannot_be_seen_or_touched() -> None:
    seen = told(
        f"""
        import ctypes, json, os
        libc = ctypes.CDLL(None, use_errno=True)
        def failure(call, *arguments):
            ctypes.set_errno(0)
            getattr(libc, call)(*arguments)
            return os.strerror(ctypes.get_errno())
        pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
        status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
        x86 = os.uname().machine == "x86_64"
        print(json.dumps({{
            "pids": pids,
            "kill": failure("kill", {os.getpid()}, 0) if {os.getpid()} not in pids else "No such process",
            "ptrace": failure("ptrace", 16, 1, 0, 0),
            "memory": failure("process_vm_readv", 1, 0, 0, 0, 0, 0),
            "memfd": failure("memfd_create", b"hidden", 0),
            "shm": failure("shmget", 0, 4096, 0o1600),
            "namespace": failure("unshare", 0x10000000),
            "mount": failure("mount", b"none", b"/tmp", b"tmpfs", 0, None),
            "uid": os.getuid(),
            "groups": os.getgroups(),
            "capabilities": [status[name].strip("0") for name in ("CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb")],
            "new_privileges": status["NoNewPrivs"],
            "descriptors": sorted(os.listdir("/proc/self/fd"))[:3],
        }}))
        """
    )
    assert len(seen["pids"]) == 2
    refused = {name: seen[name] for name in ("ptrace", "memory", "memfd", "shm", "namespace", "mount")}
    assert refused == dict.fromkeys(refused, "Operation not permitted")
    assert seen["kill"] == "No such process"
    assert seen["uid"] != 0
    assert seen["new_privileges"] == "1"
    assert seen["capabilities"] == [""] * 5
    assert seen["descriptors"] == ["0", "1", "2"]


def test_links_and_odd_files_are_not_followed_on_the_way_out(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("ours")
    program = f"""
        import os
        os.symlink({str(secret)!r}, "absolute")
        os.symlink("../../../../etc/shadow", "relative")
        os.symlink({str(tmp_path)!r}, "directory")
        os.symlink("/proc/self/environ", "process")
        os.mkfifo("pipe")
        os.mkdir("real")
        open("real/true", "w").write("x")
        os.symlink("real", "alias")
        with open("hole", "wb") as file:
            file.truncate(60 * 2**20)
        open("small", "w").write("small")
        os.chmod("small", 0)
    """
    names = ["absolute", "relative", "directory/secret", "process", "pipe", "real", "alias/true", "hole"]
    done = played(program, returns=[*names, "real/true"])
    assert done.succeeded, done.errors
    assert done.files == {"real/true": b"x"}
    assert sorted(done.missing) == sorted(names)
    assert done.missing["absolute"] == done.missing["pipe"] == "is no regular file"
    assert done.missing["directory/secret"] == done.missing["alias/true"] == "lies behind a link or a file"
    assert "1048576 bytes" in done.missing["hole"]


def test_deep_directories_and_huge_files_are_left_without_harm() -> None:
    program = """
        import os
        for _ in range(3000):
            os.mkdir("d")
            os.chdir("d")
        try:
            open("/tmp/huge", "wb").truncate(2**40)
        except OSError as error:
            print(error.errno)
        with open("/tmp/full", "wb") as file:
            file.write(bytes(50 * 2**20))
    """
    done = played(program, returns=["full", "d/d/d/x"])
    assert (done.succeeded, done.output) == (True, "27\n"), done.errors
    assert list(done.missing) == ["full", "d/d/d/x"]


def test_open_pipes_and_threads_are_bounded() -> None:
    seen = told(
        """
        import json, os, threading, time
        held = []
        try:
            while True:
                held += os.pipe()
        except OSError as error:
            pipes = [error.errno, len(held)]
            for each in held:
                os.close(each)
        threads = 0
        try:
            while True:
                threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
                threads += 1
        except RuntimeError:
            print(json.dumps([*pipes, threads]), flush=True)
            os._exit(0)
        """,
        limits=SandboxLimits(open_files=64, processes=20),
    )
    assert seen[0] == 24
    assert seen[1] <= 64
    assert seen[2] <= 20
