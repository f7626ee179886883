"""The embedded servers after every kind of end."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg
import pytest
import redis

from controlplane.home import Home
from controlplane.up import embedded
from tests.accounts import open_to_others
from workers.launchers.processes import with_cwd

pytestmark = pytest.mark.slow


@contextmanager
def postgres(home: Home) -> Iterator["subprocess.Popen[bytes]"]:
    with embedded.serving(home, embedded.prepare_postgres(home), embedded.postgres_answers) as child:
        yield child


def test_committed_row_survives_kill_minus_nine_of_the_postmaster(temporary_home: Home) -> None:
    with postgres(temporary_home) as child, psycopg.connect(temporary_home.owner_database_url) as connection:
        connection.execute("CREATE TABLE kept (value int)")
        connection.execute("INSERT INTO kept VALUES (7)")
        connection.commit()
        child.kill()
        child.wait()
    with postgres(temporary_home), psycopg.connect(temporary_home.owner_database_url) as connection:
        assert connection.execute("SELECT value FROM kept").fetchall() == [(7,)]


def test_backends_that_outlive_their_postmaster_do_not_keep_the_next_one_out(temporary_home: Home) -> None:
    with postgres(temporary_home) as child, psycopg.connect(temporary_home.owner_database_url) as connection:
        backend = psutil.Process(connection.info.backend_pid)
        # Stopped, it can neither notice the postmaster's death nor let go of the shared memory.
        backend.suspend()
        child.kill()
        child.wait()
        assert with_cwd(temporary_home.postgres_data, "postgres") != set()
        with postgres(temporary_home):
            assert not backend.is_running() or backend.status() == psutil.STATUS_ZOMBIE


def test_stale_pid_file_that_names_a_living_stranger_is_no_obstacle(temporary_home: Home) -> None:
    with postgres(temporary_home):
        pid_file = temporary_home.postgres_data / "postmaster.pid"
        lines = pid_file.read_text().splitlines(keepends=True)
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        pid_file.write_text("".join([f"{stranger.pid}\n", *lines[1:]]))
        with postgres(temporary_home):
            assert embedded.postgres_answers(temporary_home)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_half_made_data_directory_is_made_again(temporary_home: Home) -> None:
    temporary_home.create()
    partial = temporary_home.path / "postgres.partial"
    partial.mkdir()
    (partial / "PG_VERSION").write_text("18\n")
    with postgres(temporary_home):
        assert embedded.postgres_answers(temporary_home)


def test_servers_are_durable_where_they_must_be_and_open_to_nobody_else(temporary_home: Home) -> None:
    with embedded.running(temporary_home):
        with psycopg.connect(temporary_home.owner_database_url) as connection:
            shown = [
                connection.execute(f"SHOW {name}").fetchone()
                for name in ("fsync", "synchronous_commit", "full_page_writes", "listen_addresses")
            ]
        assert shown == [("on",), ("on",), ("on",), ("",)]
        with redis.Redis.from_url(temporary_home.redis_url) as client:
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
            assert client.config_get("port") == {"port": "0"}
        assert temporary_home.postgres_socket_dir.stat().st_mode & 0o077 == 0
        assert temporary_home.postgres_data.stat().st_mode & 0o077 == 0
        assert temporary_home.redis_socket.stat().st_mode & 0o077 == 0
        assert list(open_to_others(temporary_home.path)) == []


def test_redis_asks_for_a_password_and_changes_itself_for_nobody(temporary_home: Home) -> None:
    program = embedded.prepare_redis(temporary_home)
    with embedded.serving(temporary_home, program, embedded.redis_answers):
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(unix_socket_path=str(temporary_home.redis_socket)).ping()
        with redis.Redis.from_url(temporary_home.redis_url) as client:
            for command in (
                "CONFIG SET dir /",
                "MODULE LIST",
                "SAVE",
                "REPLICAOF host 1",
                "SHUTDOWN",
                "ACL LIST",
            ):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    client.execute_command(*command.split())
            assert int(client.info("server")["valkey_version"].partition(".")[0]) >= 9


def test_home_with_a_long_path_keeps_its_sockets_elsewhere(temporary_home: Home) -> None:
    home = Home(temporary_home.path.parent / ("long" * 30))
    try:
        with embedded.running(home):
            assert embedded.postgres_answers(home)
    finally:
        for leftover in sorted(home.run_dir.rglob("*"), reverse=True):
            leftover.rmdir() if leftover.is_dir() else leftover.unlink()
        home.run_dir.rmdir()


def test_data_of_another_release_is_refused_with_the_way_out(temporary_home: Home) -> None:
    temporary_home.create()
    temporary_home.postgres_data.mkdir()
    (temporary_home.postgres_data / "PG_VERSION").write_text("15\n")
    with pytest.raises(embedded.EmbeddedError, match="written by PostgreSQL 15, this is 18: dump it"):
        embedded.prepare_postgres(temporary_home)


def test_child_gets_its_stop_signal_when_its_parent_is_killed(tmp_path: Path) -> None:
    mark = tmp_path / "signals"
    grandchild = f"import signal,sys\nsignal.signal(10, lambda *_: sys.exit(open({str(mark)!r}, 'w').write('10')))\n"
    grandchild += "print('ready', flush=True)\nwhile True: signal.pause()"
    parent = (
        "import subprocess, sys, time, signal\n"
        "from controlplane.up.processes import Program\n"
        f"program = Program('x', (sys.executable, '-c', {grandchild!r}), stop_signal=signal.SIGUSR1)\n"
        "print(subprocess.Popen(program.command(), start_new_session=True).pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        first, second = sorted([child.stdout.readline(), child.stdout.readline()])
        assert second == "ready\n"
        orphan = psutil.Process(int(first))
        child.send_signal(signal.SIGKILL)
    psutil.wait_procs([orphan], timeout=10)
    assert mark.read_text() == "10"
