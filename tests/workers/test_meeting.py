"""Ranks meet at the table of an agent, over the sockets of two nodes."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import PrefixStore

from trainers.distributed.meeting import MeetingStore
from workers import doors
from workers.meeting import PREFIX, Meeting

KEY = "sesame"


@pytest.fixture
def sockets(tmp_path: Path) -> Iterator[list[Path]]:
    """Of the first node, and of another whose agent leads there."""
    first, other = tmp_path / "first", tmp_path / "other"
    ready, ended, loop = threading.Event(), asyncio.Event(), asyncio.new_event_loop()

    async def serve() -> None:
        answers = {PREFIX: Meeting().answer}
        async with AsyncExitStack() as opened:
            url = await opened.enter_async_context(doors.to_socket(None, KEY, "127.0.0.1", answers))
            await opened.enter_async_context(doors.to_answers(first, answers))
            await opened.enter_async_context(doors.to_first_node(url, KEY, PREFIX, other))
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(30)
    yield [first, other]
    loop.call_soon_threadsafe(ended.set)
    thread.join(30)
    loop.close()


def test_what_a_rank_sets_every_other_sees(sockets: list[Path]) -> None:
    here, there = (MeetingStore(place) for place in sockets)
    here.set("a", "x")
    here.set("0//gloo/1?&=", b"\0\xff")
    assert there.get("a") == b"x"
    assert there.clone().get("0//gloo/1?&=") == b"\0\xff"
    assert [there.add("n", 2), here.add("n", 3)] == [2, 5]
    assert there.check(["a", "n"])
    assert not there.check(["a", "b"])
    assert there.delete_key("a")
    assert not here.delete_key("a")
    assert not there.check(["a"])


def test_rank_waits_until_another_has_set_what_it_wants(sockets: list[Path]) -> None:
    """Through torch's own wrapper, which asks from its threads."""
    here, there = (PrefixStore("group", MeetingStore(place)) for place in sockets)
    found: list[bytes] = []
    waiting = threading.Thread(target=lambda: found.append(there.get("late")))
    waiting.start()
    here.set("late", b"come")
    waiting.join(30)
    assert found == [b"come"]


def test_wait_for_what_nobody_sets_ends_with_what_was_missed(
    sockets: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.meeting._WAIT_S", 0.01)
    with pytest.raises(TimeoutError, match="no rank has set never"):
        MeetingStore(sockets[1]).wait(["never"], timedelta(seconds=0.05))


def test_table_has_room_for_no_more_than_ranks_say(sockets: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    store = MeetingStore(sockets[0])
    with pytest.raises(ConnectionError, match="413"):
        store.set("k" * 2000, b"")
    with pytest.raises(ConnectionError, match="413"):
        store.set("k", b"x" * (2**20 + 1))
    monkeypatch.setattr("workers.meeting._MAX_TOTAL", 20)
    store.set("a", b"x" * 10)
    store.set("a", b"y" * 10)
    with pytest.raises(ConnectionError, match="413"):
        store.set("b", b"x" * 10)
    assert store.delete_key("a")
    store.set("b", b"x" * 10)
    with pytest.raises(ConnectionError, match="422"):
        store.add("b", 1)
