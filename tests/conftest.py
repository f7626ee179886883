"""Real servers for the tests: one PostgreSQL and one Redis per session, started when a test first needs them."""

import gc
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management.commands import flush
from django.db import connection, transaction
from django.test import TransactionTestCase
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from controlplane.home import Home
from controlplane.web import pacing
from rollouts import bell, guesses
from rollouts.services import model_checks
from tests import store
from tests.lanes import IS_LONG, amount

PRODUCT = {"vllm", "e2e", "browser"}
"""Marks of tests that start so much that three of them would starve each other."""
LONGEST = (
    "tests/hostile/test_fuzz.py",
    "tests/trainers/distributed/test_parallelism.py",
    "tests/trainers/storage/test_resume.py",
    "tests/trainers/test_rl.py",
    "tests/access/test_matrix.py",
    "tests/hostile/test_small_bodies.py",
    "tests/trainers/test_sft.py",
)
"""Files of minutes. The last to be begun is waited for, while other processes have nothing left."""

# How long an example takes says more about the machine than about the product. Hypothesis' own profile for CI takes the
# same examples each time: a new find is for whoever looks for it, as the long lane does.
hypothesis_settings.register_profile(
    "rollyard",
    parent=hypothesis_settings.get_profile("ci" if "CI" in os.environ and not IS_LONG else "default"),
    max_examples=amount(40, 1000),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
hypothesis_settings.load_profile("rollyard")
flush.Command = store.FlushAsOwner  # type: ignore[misc]

_KEPT = {"django_migrations", "django_content_type", "auth_permission"}
"""Tables whose rows are as the migrations left them."""

gc.disable()  # Three hundred modules are read now, and none is garbage.


def pytest_collection_finish() -> None:
    """What was read stays: no collection looks through it again."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """With `--dist loadgroup`, tests of a group run in one process, one after another, in this order.

    What starts the whole product, vLLM or a browser is two groups, of about equal length, and first, being long; of the
    rest each file is one, for its fixtures' sake, and the longest have their turn before the others.
    """
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    yield  # to xdist, which reads the marks, and to those that sort for the sake of fixtures
    if config.getoption("loadgroup", default=False) and not all("@" in item.nodeid for item in items):
        raise pytest.UsageError("xdist has put no test into its group: their versions do not fit together")
    items.sort(key=lambda item: _turn(_group(item)))


def _group(item: pytest.Item) -> str:
    file = item.location[0]
    if PRODUCT.isdisjoint(mark.name for mark in item.iter_markers()):
        return file
    return "runs" if file.startswith(("tests/e2e/", "tests/slurm/")) else "servers"


def _turn(group: str) -> int:
    """When a group has its turn: what starts the product first, short files last."""
    if not group.startswith("tests/"):
        return 0
    return 1 + LONGEST.index(group) if group in LONGEST else 1 + len(LONGEST)


@pytest.fixture(autouse=True, scope="session")
def _runs_may_read_what_tests_make() -> None:
    """Pytest's directories are closed to the account of runs, so a launch from there would be refused to root."""
    model_checks.closed_to_runs = lambda path: ""


def pytest_unconfigure() -> None:
    """Remove the home that `settings.py` made, and let the interpreter's end find all that it looks for."""
    gc.unfreeze()
    shutil.rmtree(os.environ["ROLLYARD_HOME"], ignore_errors=True)


@pytest.fixture(scope="session")
def servers() -> Iterator[Home]:
    """The embedded servers, unless DATABASE_URL and REDIS_URL name others."""
    home: Home = settings.HOME
    if "DATABASE_URL" in os.environ and "REDIS_URL" in os.environ:
        yield home
        return
    with store.running(home):
        yield home


@pytest.fixture(scope="session")
def django_db_modify_db_settings(servers: Home) -> None:
    """Start the servers before the test database is made: pytest-django asks for this fixture at that moment.

    A test that is one transaction is idle in it while it imports torch, which nobody else waits for.
    """
    connection.settings_dict["OPTIONS"]["options"] += " -c idle_in_transaction_session_timeout=300s"


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Before the test database is dropped, end the connections that threads of the product keep to it."""
    yield
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()"
        )


@pytest.fixture(autouse=True, scope="session")
def quick_cleaning() -> Iterator[None]:
    """Django truncates every table and makes its permissions anew: a quarter of a second for each test that commits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", _delete_every_row)
        yield


def _delete_every_row(_case: TransactionTestCase) -> None:
    # Foreign keys are checked at the commit, so the order does not matter.
    tables = sorted(set(connection.introspection.django_table_names(only_existing=True)) - _KEPT)
    with transaction.atomic(), store.beyond_rights(), connection.cursor() as cursor:
        cursor.execute(";".join(f'DELETE FROM "{table}"' for table in tables))


@pytest.fixture(autouse=True)
def bell_is_at_rest(_django_db_marker: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Before the tables are emptied after a test: a ring on its way reads two of them, and the two would deadlock."""
    monkeypatch.setattr(bell, "INTERVAL_S", 0.01)  # most of what the test would wait for
    yield
    assert bell.wait_until_sent(30)


@pytest.fixture(autouse=True)
def nobody_has_guessed() -> None:
    """All tests come from one address, and many of them with credentials that open nothing."""
    guesses.forget()
    pacing.forget()


@pytest.fixture
def temporary_home() -> Iterator[Home]:
    """A home of its own for a test that starts its own servers.

    Not under `tmp_path`, whose parents only root may pass when the tests run as root, while PostgreSQL may not be root.
    """
    path = Path(tempfile.mkdtemp(prefix="rollyard-home-"))
    path.chmod(0o711)
    yield Home(path / "home")
    shutil.rmtree(path, ignore_errors=True)
