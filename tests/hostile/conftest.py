"""One database content and one web process for the whole corpus: a case is a request and two counts, not a cleaning."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command

from rollouts.models import ScoredGroup
from tests.browser.server import collect_static
from tests.hostile.application import Target
from tests.hostile.server import Web, serving


@pytest.fixture(scope="package")
def _target(django_db_setup: None, django_db_blocker: Any) -> Iterator[Target]:
    with django_db_blocker.unblock():
        target = Target()
        yield target
        target.loop.close()
        # Not the sequences: what a process remembers of a run by its id would be remembered of another.
        call_command("flush", interactive=False, verbosity=0, reset_sequences=False)


@pytest.fixture
def target(_target: Target, caplog: pytest.LogCaptureFixture) -> Iterator[Target]:
    """Runs to aim at. What the server logs as an error of its own fails the test; a refused host is none of them."""
    yield _target
    for phase in ("setup", "call"):
        errors = [each for each in caplog.get_records(phase) if each.levelno >= logging.ERROR]
        assert [each for each in errors if not each.name.startswith("django.security.")] == []


@pytest.fixture(scope="package")
def _web(_target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    collect_static()  # or it has no page, not even for what is not there
    with serving(tmp_path_factory.mktemp("web") / "log") as web:
        for _ in range(10):  # what is loaded at first use is not counted later
            web.check_serves(_target)
        yield web


@pytest.fixture
def web(_web: Web, target: Target) -> Iterator[Web]:
    """The web process, which after the test still serves, and has logged no error of its own."""
    said = len(_web.log.read_text())
    yield _web
    _web.check_serves(target)
    lines = _web.log.read_text()[said:].splitlines()
    assert [line for line in lines if " ERROR " in line and " django.security." not in line] == []


@pytest.fixture
def nothing_stored(web: Web) -> Iterator[None]:
    """The test sends the web process no group that is stored."""
    before = ScoredGroup.objects.count()
    yield
    assert ScoredGroup.objects.count() == before
