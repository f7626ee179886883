"""How the database is connected to: by whom, how long a silent line lives, and how soon a pool is there again."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import settings
from psycopg_pool import ConnectionPool, PoolTimeout

from controlplane.home import Home
from controlplane.settings import database
from controlplane.up import embedded
from workers.leadership import Leadership

pytestmark = pytest.mark.django_db

_REFUSING = """
import socket, struct, sys
fields = b"SFATAL\\0VFATAL\\0C" + sys.argv[2].encode() + b"\\0Mno\\0\\0"
with socket.socket(socket.AF_UNIX) as server:
    server.bind(sys.argv[1])
    server.listen()
    print("listens", flush=True)
    while True:
        line, _ = server.accept()
        line.recv(4096)
        line.sendall(b"E" + struct.pack("!I", 4 + len(fields)) + fields)
        line.close()
"""
"""A server that answers everybody with one error, in a process of its own."""


def test_a_database_whose_machine_is_gone_is_noticed_within_half_a_minute() -> None:
    options = database("postgres://u:p@host/db", 16)["OPTIONS"]
    assert (options["keepalives_idle"], options["tcp_user_timeout"]) == (10, 30_000)
    assert "tcp_" not in options["options"], "a pooler in between may allow only what it knows"


def test_a_leader_whose_machine_is_gone_loses_its_lock_within_half_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def connect(**parameters: Any) -> None:
        asked.update(parameters)
        raise psycopg.OperationalError

    monkeypatch.setattr(psycopg, "connect", connect)
    with pytest.raises(psycopg.OperationalError):
        Leadership().acquire()
    for each in ("tcp_keepalives_idle=10", "tcp_keepalives_interval=5", "tcp_keepalives_count=4"):
        assert f"-c {each}" in asked["options"]


def test_what_a_url_says_of_its_sessions_holds() -> None:
    url = "postgres://u:p@host/db?options=-c%20synchronous_commit%3Dremote_apply&keepalives_idle=70"
    options = database(url, 16)["OPTIONS"]
    assert options["options"].endswith("-c synchronous_commit=remote_apply")
    assert options["keepalives_idle"] == 70


@contextmanager
def pool_without_a_server(directory: Path) -> Iterator[tuple["ConnectionPool[Any]", Callable[[], None]]]:
    """A pool as ours, and what makes the database be there."""
    name, there = ".s.PGSQL.5432", settings.HOME.postgres_socket_dir
    given = psycopg.conninfo.conninfo_to_dict(settings.HOME.database_url)
    options = settings.DATABASES["default"]["OPTIONS"]["pool"]
    with ConnectionPool(kwargs={**given, "host": str(directory)}, open=True, **options) as pool:
        yield pool, lambda: (directory / name).symlink_to(there / name)


def test_a_pool_is_there_as_soon_as_the_database_is(tmp_path: Path) -> None:
    """Somebody asks in vain for four seconds, after which the pool's own patience would have it look in three more."""
    with pool_without_a_server(tmp_path) as (pool, serve):
        with suppress(PoolTimeout):
            pool.getconn(timeout=4)
        serve()
        with pool.connection(timeout=1) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_who_waits_for_a_pool_is_served_once_the_database_is_back_though_nobody_else_asks(tmp_path: Path) -> None:
    with pool_without_a_server(tmp_path) as (pool, serve):
        threading.Timer(4, serve).start()  # behind what one attempt lasts
        with pool.connection(timeout=9) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize(("code", "recovers"), [("57P03", True), ("28000", False)])
def test_a_server_that_replays_its_log_is_known_by_what_it_answers(tmp_path: Path, code: str, recovers: bool) -> None:
    home = Home(tmp_path)
    home.create()
    home.postgres_socket_dir.mkdir(parents=True, exist_ok=True)
    assert not embedded.postgres_recovers(home), "nobody is there"
    place = home.postgres_socket_dir / ".s.PGSQL.5432"
    with subprocess.Popen([sys.executable, "-c", _REFUSING, place, code], stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"listens\n"
            assert embedded.postgres_recovers(home) is recovers
        finally:
            server.kill()
