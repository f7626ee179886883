"""How the database is connected to: by whom, how long a silent line lives, and how soon a pool is there again."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from django.conf import settings
from psycopg_pool import ConnectionPool, PoolTimeout

from controlplane.home import Home
from controlplane.settings import database
from controlplane.up import embedded

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


def test_a_machine_that_is_gone_is_noticed_within_half_a_minute_by_both_ends() -> None:
    options = database("postgres://u:p@host/db", 16)["OPTIONS"]
    assert (options["keepalives_idle"], options["tcp_user_timeout"]) == (10, 30_000)
    for name in ("tcp_keepalives_idle=10", "tcp_keepalives_interval=5", "tcp_keepalives_count=4"):
        assert f"-c {name}" in options["options"]


def test_what_a_url_says_of_its_sessions_holds() -> None:
    url = "postgres://u:p@host/db?options=-c%20tcp_keepalives_idle%3D60&keepalives_idle=70"
    options = database(url, 16)["OPTIONS"]
    assert options["options"].endswith("-c tcp_keepalives_idle=60")
    assert options["keepalives_idle"] == 70


def test_a_pool_is_there_as_soon_as_the_database_is(tmp_path: Path) -> None:
    """Somebody asks in vain for four seconds, after which the pool's own patience would have it look in three more."""
    name, there = ".s.PGSQL.5432", settings.HOME.postgres_socket_dir
    given = psycopg.conninfo.conninfo_to_dict(settings.HOME.database_url)
    options = settings.DATABASES["default"]["OPTIONS"]["pool"]
    with ConnectionPool(kwargs={**given, "host": str(tmp_path)}, open=True, **options) as pool:
        with suppress(PoolTimeout):
            pool.getconn(timeout=4)
        (tmp_path / name).symlink_to(there / name)
        with pool.connection(timeout=1) as connection:
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
