"""Hidden characters: no name can hold one, and what holds one all the same is shown with its number."""

import json
from datetime import timedelta
from html.parser import HTMLParser
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from typer.testing import CliRunner

from controlplane.cli import main
from environments.visible import HIDDEN, has_hidden, visible
from rollouts.errors import Invalid
from rollouts.formats.arrays import PackedGroup
from rollouts.formats.checks import check_groups
from rollouts.formats.native import decode_groups
from rollouts.models import Model, ModelOrigin, Rollout, Run, Scope
from rollouts.services.runs import tokens
from tests import store
from tests.factories import (
    make_batch,
    make_event,
    make_group,
    make_metrics,
    make_project,
    make_replica,
    make_run,
    make_user,
)
from tests.hostile.case import good

BAD = "a\u202egnp\x1b[31mb\x9bc\u2066d\u200be"
PAGES = [
    "/",
    "/models/",
    "/runs/{run}/",
    "/runs/{run}/rollouts/",
    "/runs/{run}/events/",
    "/runs/{run}/config/",
    "/runs/{run}/connect/",
    "/runs/{run}/steps/0/",
    "/runs/{run}/groups/{group}/",
    "/admin/rollouts/run/",
    "/admin/rollouts/runenvironment/",
    "/admin/rollouts/event/",
    "/admin/rollouts/replica/",
    "/admin/rollouts/model/",
    "/admin/rollouts/metricpoint/",
    "/admin/rollouts/scoredgroup/",
    "/admin/rollouts/project/",
]


@pytest.fixture
def old(db: None) -> tuple[Run, str]:
    """A run whose every name was given before names were looked at."""
    with store.beyond_rights():
        run = make_run(next_step=1, name=BAD)
        run.project.name = BAD
        run.project.save()
        run.environments.update(name=BAD)
        make_metrics(run, f"reward/{BAD}", [0.5])
        make_replica(run, slot=0, reason=BAD)
        make_event(run, actor=BAD, reason=BAD)
        Model.objects.create(project=run.project, name="named", source=BAD, origin=ModelOrigin.ADDED)
        group = make_group(run, key="g", problem_key=BAD)
        Rollout.objects.filter(group=group).update(replica=BAD, metrics={BAD: 1.0})
        make_batch(run, 0, [group])
    return run, group.key


def decoded(group: dict[str, Any]) -> list[PackedGroup]:
    """A group as the API takes it."""
    return decode_groups(json.dumps(group).encode(), is_msgpack=False)


class Shown(HTMLParser):
    """What people see of a page: its text and what its elements are described with, not the values of its forms."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text = ""
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag
        self.text += " ".join(value or "" for name, value in attrs if name in {"title", "aria-label", "alt"})
        for series in (value for name, value in attrs if name == "series"):
            self.text += " ".join(label for _key, label in json.loads(series or "[]"))

    def handle_data(self, data: str) -> None:
        if self._inside not in {"script", "textarea"}:
            self.text += data


@pytest.mark.parametrize("path", PAGES)
def test_no_page_has_a_hidden_character(client: Client, old: tuple[Run, str], path: str) -> None:
    run, group = old
    client.force_login(User.objects.create_superuser("root"))
    page = client.get(path.format(run=run.key, group=group))
    assert page.status_code == 200
    shown = Shown(page.content.decode()).text
    assert [found.group() for found in HIDDEN.finditer(shown)] == []
    assert "U+202E" in shown


def test_the_command_line_commands_no_terminal(old: tuple[Run, str]) -> None:
    run, _group = old
    for words in (["runs", "show", run.key], ["runs", "list"], ["models", "list", "--project", "words"]):
        done = CliRunner().invoke(main.app, words)
        assert done.exit_code == 0, done.output
        assert not has_hidden(done.stdout)
        assert "U+202E" in done.stdout


@pytest.mark.parametrize("character", list("\u202e\u2066\x1b\x9b\n\u200f\u200b\ufeff\U000e0041\0"))
@pytest.mark.parametrize("place", ["environment", "key", "replica", "metrics"])
def test_no_group_brings_such_a_name(place: str, character: str) -> None:
    group = good()
    name: Any = f"a{character}b"
    if place in {"environment", "key"}:
        group[place] = name
    else:
        group["rollouts"][0][place] = {name: 1.0} if place == "metrics" else name
    with pytest.raises(Invalid) as refusal:
        check_groups(decoded(group))
    assert place in str(refusal.value.faults)


def test_no_token_is_named_so(db: None) -> None:
    with pytest.raises(Invalid, match="No token was made"):
        tokens.create(user=make_user(), project=make_project(), name=BAD, scopes=[Scope.READ], ttl=timedelta(days=1))


@pytest.mark.parametrize("key", [".", ".."])
def test_no_group_has_a_key_that_is_a_directory(key: str) -> None:
    with pytest.raises(Invalid, match="do not hold together"):
        check_groups(decoded({**good(), "key": key}))


@pytest.mark.parametrize("character", ["\u034f", "\u2062", "\u206a", "\ufffa", "\U000e0149", "\U000e0041"])
def test_a_mark_that_nothing_shows_shows_itself(character: str) -> None:
    assert has_hidden(f"fine{character}")
    assert visible(f"fine{character}") == f"fine\u27e8U+{ord(character):04X}\u27e9"


@pytest.mark.parametrize("text", ["plain", "日本語", "👩\u200d💻 ❤\ufe0f", "ἀ", "a\tb\n"])
def test_what_people_write_has_nothing_hidden(text: str) -> None:
    assert not has_hidden(text)
