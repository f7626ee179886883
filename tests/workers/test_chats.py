"""Where the tokenizer of a run's model is found, which links to it are followed, and how often a server is asked."""

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from environments.chat.rendered import RenderedChat
from environments.chat.template import TemplateChat
from environments.fakes import ScriptedPolicy
from environments.types import JsonObject, Message
from tests.environments.test_chat import Templated
from trainers.model.tiny_tools import tool_tokenizer
from workers.chats import Chats
from workers.fleet import hub

trains_a_tokenizer = pytest.mark.slow
NAMES = ("tokenizer.json", "tokenizer_config.json")


@pytest.fixture
def blobs(tmp_path: Path) -> Path:
    """Files of a tokenizer, which lie where no run writes."""
    tool_tokenizer().save_pretrained(tmp_path / "blobs")
    return tmp_path / "blobs"


@pytest.fixture
def runs(tmp_path: Path, settings: Any) -> Path:
    settings.ROLLYARD_RUNS_DIR = tmp_path / "runs"
    return tmp_path / "runs"


def linked(directory: Path, blobs: Path) -> Path:
    directory.mkdir(parents=True)
    for name in NAMES:
        (directory / name).symlink_to(blobs / name)
    return directory


def spoken(model: str | Path) -> type:
    return type(asyncio.run(Chats(str(model)).of(Templated(tool_tokenizer()))))


@trains_a_tokenizer
def test_no_link_to_a_tokenizer_is_followed_where_runs_write(tmp_path: Path, blobs: Path, runs: Path) -> None:
    assert spoken(linked(runs / "r" / "weights", blobs)) is TemplateChat
    assert spoken(linked(tmp_path / "shared", blobs)) is RenderedChat
    tool_tokenizer().save_pretrained(runs / "r" / "whole")
    assert spoken(runs / "r" / "whole") is RenderedChat


@trains_a_tokenizer
def test_a_tokenizer_of_the_hubs_cache_is_found_behind_its_links(
    tmp_path: Path, blobs: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(runs / "hub"))  # wherever it lies, no run writes it
    linked(runs / "hub" / "models--a--b" / "snapshots" / "c", blobs)
    assert spoken("a/b") is RenderedChat
    assert hub.tokenizer_directory("a/c") is None


@trains_a_tokenizer
def test_below_a_models_directory_no_tokenizer_is_looked_for(tmp_path: Path, blobs: Path) -> None:
    linked(tmp_path / "m" / "snapshots" / "c", blobs)
    assert hub.tokenizer_directory(str(tmp_path / "m")) is None
    assert hub.tokenizer_directory(str(tmp_path / "m" / "snapshots" / "c")) is not None


class Counting(ScriptedPolicy):
    """Counts the prompts that it renders."""

    def __init__(self) -> None:
        super().__init__([])
        self.rendered = 0

    async def render(self, messages: Sequence[Message], tools: Sequence[JsonObject] = ()) -> list[int]:
        self.rendered += 1
        return await super().render(messages, tools)


async def rendered(chats: Chats, problems: Iterable[int]) -> int:
    """Prompts that are asked of the policy for groups of these problems, which begin at the same time."""
    policy = Counting()

    async def begin(problem: int) -> None:
        asked = [Message("user", f"What is {problem} + 1?")]
        chat = await chats.of(policy)
        assert await chat.render(asked, []) == await ScriptedPolicy([]).render(asked)

    await asyncio.gather(*map(begin, problems))
    return policy.rendered


def test_what_a_template_does_is_asked_once_for_all_groups_of_a_model() -> None:
    one, nine = (asyncio.run(rendered(Chats("/nowhere"), range(count))) for count in (1, 9))
    assert nine == one + 8, "a prompt each"


def test_problems_that_are_evaluated_again_are_not_rendered_again() -> None:
    async def play() -> list[int]:
        chats = Chats("/nowhere")
        await rendered(chats, range(10))
        return [await rendered(chats, range(count)) for count in (10, 11, 2_000, 1)]

    assert asyncio.run(play()) == [0, 1, 1_989, 1], "of very many the first are forgotten"
