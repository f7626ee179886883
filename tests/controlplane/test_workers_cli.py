"""`rollyard workers`, where the lines of `rollyard up` listen, and when a worker's time is over."""

from types import SimpleNamespace

import pytest

from controlplane.up.listening import for_workers
from controlplane.up.supervisor import StartError
from tests.controlplane.command_line import Rollyard
from workers.episodes import BUDGET_S
from workers.remote import UNTIL_VARIABLE
from workers.tasks import claiming_s

DATABASE = "postgresql://us@db.example/rollyard"
REDIS = "redis://redis.example"


def test_without_lines_workers_are_told_how_to_reach_the_servers(rollyard: Rollyard) -> None:
    done = rollyard("workers", "start")
    assert done.returncode == 1
    assert "rollyard up --lines-port auto" in done.stderr


def test_where_there_is_no_slurm_it_says_what_workers_want_it_for(rollyard: Rollyard) -> None:
    done = rollyard("workers", "list", PATH="/nowhere")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: these workers are jobs of SLURM, which does not answer (docs/cluster.md says")
    assert "squeue" in done.stderr


@pytest.mark.parametrize(
    ("database", "redis", "said"),
    [
        (DATABASE, REDIS, "add ?sslmode=verify-full"),
        (f"{DATABASE}?sslmode=prefer", REDIS, "add ?sslmode=verify-full"),
        (f"{DATABASE}?sslmode=verify-full", REDIS, "write rediss://"),
    ],
)
def test_servers_that_are_reached_in_the_clear_are_refused(
    rollyard: Rollyard, database: str, redis: str, said: str
) -> None:
    done = rollyard("workers", "start", DATABASE_URL=database, REDIS_URL=redis)
    assert (done.returncode, said in done.stderr) == (1, True), done.stderr


@pytest.mark.parametrize(
    ("host", "nodes_url", "said"),
    [
        ("0.0.0.0", "", "set ROLLYARD_NODES_URL"),
        ("127.0.0.1", "http://8.8.8.8:8000", "8.8.8.8 is no private address"),
    ],
)
def test_lines_listen_on_a_private_address_alone(
    monkeypatch: pytest.MonkeyPatch, host: str, nodes_url: str, said: str
) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.delenv("REDIS_URL", raising=False)
    monkeypatch.setenv("ROLLYARD_NODES_URL", nodes_url)
    with pytest.raises(StartError, match=said), for_workers(host, 0):
        pass
    monkeypatch.setenv("ROLLYARD_NODES_URL", "http://127.0.0.1:8000")
    with for_workers(host, 0) as listening:
        assert listening is not None
        assert listening.getsockname()[0] == "127.0.0.1"
    monkeypatch.setenv("REDIS_URL", "rediss://r")
    with pytest.raises(StartError, match="REDIS_URL is set"), for_workers(host, 0):
        pass


@pytest.mark.parametrize(("left_s", "expected"), [(None, BUDGET_S), (10_000, BUDGET_S), (150, 30), (100, -20)])
def test_worker_begins_nothing_that_may_not_end_before_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch, left_s: float | None, expected: float
) -> None:
    monkeypatch.delenv(UNTIL_VARIABLE, raising=False)
    if left_s is not None:
        monkeypatch.setenv(UNTIL_VARIABLE, str(1_000_000 + left_s))
    environments = [SimpleNamespace(timeout_s=120.0), SimpleNamespace(timeout_s=60.0)]
    run = SimpleNamespace(parsed=SimpleNamespace(environments=environments))
    assert claiming_s(run, 1_000_000.0) == expected  # type: ignore[arg-type]
