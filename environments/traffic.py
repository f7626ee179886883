"""How much of the policy a driver has asked for at a time, and what its open sessions wait for.

A session may be open for hours and cost nothing: what an inference server has to hold are the tokens of replies that
are under way. So sessions are many, and the tokens that they ask for together have a limit; who comes beyond it waits,
in order.
"""

import math
from asyncio import Future, get_running_loop
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager


class Traffic:
    """Of one event loop."""

    def __init__(self, most_tokens: float = math.inf) -> None:
        """`most_tokens`: prompts, and what may be sampled to them, of all requests in flight."""
        self.most_tokens = most_tokens
        self.sessions = 0
        """Open ones."""
        self.asking = 0
        """Sessions with a request at the policy."""
        self.scoring = 0
        """Sessions whose group is being scored."""
        self.tokens = 0
        """In flight."""
        self._queue: deque[tuple[int, Future[None]]] = deque()

    @property
    def queued(self) -> int:
        """Requests that wait for room."""
        return len(self._queue)

    @contextmanager
    def open(self, sessions: int) -> Iterator[None]:
        """Sessions that are open meanwhile."""
        self.sessions += sessions
        try:
            yield
        finally:
            self.sessions -= sessions

    @contextmanager
    def scored(self, sessions: int) -> Iterator[None]:
        """Sessions that are being scored meanwhile."""
        self.scoring += sessions
        try:
            yield
        finally:
            self.scoring -= sessions

    @asynccontextmanager
    async def admitted(self, tokens: int, sessions: int = 1) -> AsyncIterator[None]:
        """Wait for room for a request of so many tokens, and take it. One that is larger than the limit goes alone."""
        if self._queue or not self._has_room(tokens):
            turn: Future[None] = get_running_loop().create_future()
            entry = (tokens, turn)
            self._queue.append(entry)
            try:
                await turn
            except BaseException:
                if turn.done() and not turn.cancelled():
                    self._leave(tokens)  # it was let in as it gave up
                elif entry in self._queue:
                    self._queue.remove(entry)
                    self._admit()
                raise
        else:
            self.tokens += tokens
        self.asking += sessions
        try:
            yield
        finally:
            self.asking -= sessions
            self._leave(tokens)

    def _has_room(self, tokens: int) -> bool:
        return not self.tokens or self.tokens + tokens <= self.most_tokens

    def _leave(self, tokens: int) -> None:
        self.tokens -= tokens
        self._admit()

    def _admit(self) -> None:
        """Let in whoever is first, as long as there is room."""
        while self._queue and (self._queue[0][1].done() or self._has_room(self._queue[0][0])):
            tokens, turn = self._queue.popleft()
            if not turn.done():
                self.tokens += tokens
                turn.set_result(None)
