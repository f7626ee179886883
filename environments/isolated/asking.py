"""What the process of an isolated environment asks back, and who answers it here: sessions, other policies, tools.

It may ask in the name of an episode that it plays or of a call that is made to it, and no longer than either lasts.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from environments.env import PolicySession
from environments.errors import NoSuchPolicy, words_of
from environments.isolated.frames import (
    MAX_ASKED,
    MAX_TOOLS,
    Ask,
    AskAddress,
    AskOther,
    AskReply,
    AskTool,
    RemoteFault,
    Withdraw,
)
from environments.others import Others

MAX_WORDS = 500
_TOOLS = 0

Tool = Callable[[bytes], Awaitable[msgspec.Raw]]
"""Runs a command for a process. Raises ValueError for one that is none."""
Tell = Callable[[int, Any, RemoteFault | None], None]
"""Sends the answer to an ask of that number."""


class Answers:
    """Of one process, on one event loop."""

    def __init__(self, tool: Tool, tell: Tell) -> None:
        self._tool = tool
        self._tell = tell
        self._sessions: dict[int, PolicySession] = {}
        self._others: dict[int, Others | None] = {}
        self._asked: dict[int, set[asyncio.Task[None]]] = {_TOOLS: set()}
        """Session or call -> what it waits for; the tools of all are one."""
        self._giving: dict[int, asyncio.Task[None]] = {}
        """Number of an ask -> what gets its answer."""

    @contextmanager
    def to_session(self, number: int, session: PolicySession) -> Iterator[None]:
        """Let it play a session meanwhile."""
        self._sessions[number] = session
        try:
            with self._answered(number):
                yield
        finally:
            del self._sessions[number]

    @contextmanager
    def to_call(self, number: int, others: Others | None) -> Iterator[None]:
        """Let the code behind a call ask others meanwhile."""
        self._others[number] = others
        try:
            with self._answered(number):
                yield
        finally:
            del self._others[number]

    def begin(self, number: int, ask: Ask) -> None:
        """Get somebody over there what was asked for."""
        if isinstance(ask, Withdraw):
            if (given_up := self._giving.get(number)) is not None:
                given_up.cancel()
            return
        name = _TOOLS if isinstance(ask, AskTool) else ask.call if isinstance(ask, AskOther) else ask.session
        asked = self._asked.get(name)
        most = MAX_TOOLS if name == _TOOLS else MAX_ASKED
        # What was withdrawn may take a while to end, and whoever withdrew it asks on.
        if asked is None or sum(not each.cancelling() for each in asked) >= most:
            why = "is over" if asked is None else f"waits for {most} answers already"
            self._tell(number, None, RemoteFault("SessionOver", f"This session {why}."))
            return
        task = asyncio.create_task(self._give(number, ask))
        asked.add(task)
        task.add_done_callback(asked.discard)
        self._giving[number] = task
        task.add_done_callback(lambda _: self._giving.pop(number, None))

    async def aclose(self) -> None:
        """Answer nothing more."""
        tasks = list(self._asked[_TOOLS])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @contextmanager
    def _answered(self, number: int) -> Iterator[None]:
        self._asked[number] = set()
        try:
            yield
        finally:
            for task in self._asked.pop(number):
                task.cancel()

    async def _give(self, number: int, ask: Ask) -> None:
        given: Any = None
        fault = None
        try:
            given = await self._answer(ask)
        except Exception as error:  # noqa: BLE001 - whatever it was, somebody over there waits for it
            fault = RemoteFault(type(error).__name__, words_of(error)[:MAX_WORDS])
        self._tell(number, given, fault)

    async def _answer(self, ask: Ask) -> Any:
        if isinstance(ask, AskTool):
            return await self._tool(bytes(ask.request))
        if isinstance(ask, AskAddress):
            return (await self._sessions[ask.session].address()).api_key
        if isinstance(ask, AskReply):
            return await self._sessions[ask.session].reply(ask.messages, ask.tools)
        assert isinstance(ask, AskOther)
        if (others := self._others[ask.call]) is None:
            raise NoSuchPolicy
        return await others.reply(
            ask.name,
            ask.messages,
            ask.tools,
            max_tokens=ask.max_tokens,
            temperature=ask.temperature,
            seed=ask.seed,
        )
