"""Who plays one group of an Atropos environment: its sessions, and what was said in each.

Atropos plays a group as a whole, from one address; each of its rollouts is a session of its own here. So every request
needs a seat: a prompt goes on where its beginning was said, and one that nobody knows begins at a free seat.
"""

import asyncio
import json
import secrets
import weakref
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

JsonObject = dict[str, Any]
Prompt = tuple[Hashable, ...]
"""Tokens, or messages as `said` writes them."""

NOBODY = "nobody"
"""The key outside of any group."""


class NoSeat(Exception):
    """A request that belongs to no rollout of the group."""


@dataclass(slots=True, eq=False)
class Reply:
    """What the policy said to one prompt."""

    parent: "Reply | None"
    whole: Prompt
    """The prompt and the reply behind it."""
    token_ids: list[int]
    """Of the reply."""
    text: str
    answer: JsonObject = field(default_factory=dict)
    """What the client is given."""

    @property
    def path(self) -> "list[Reply]":
        """The replies up to this one, the first first."""
        path = [self]
        while (parent := path[-1].parent) is not None:
            path.append(parent)
        return path[::-1]


@dataclass(slots=True, eq=False)
class Seat:
    """One rollout of the group."""

    base_url: str = ""
    """Of its session; ends in `/v1`."""
    replies: list[Reply] = field(default_factory=list)
    asked: int = 0
    """Replies that are awaited."""
    played: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """What came of it."""

    @property
    def is_free(self) -> bool:
        """Whether nothing was said here yet."""
        return not self.replies and not self.asked

    @property
    def sampled(self) -> int:
        """Tokens that were sampled here."""
        return sum(len(reply.token_ids) for reply in self.replies)

    @property
    def leaves(self) -> list[Reply]:
        """Replies that nothing goes on from: the ends of the branches."""
        parents = {id(reply.parent) for reply in self.replies}
        return [reply for reply in self.replies if id(reply) not in parents]


class GroupTable:
    """The seats of one group, from the moment its episodes begin until Atropos has scored it."""

    def __init__(self) -> None:
        self.key = secrets.token_urlsafe(24)
        self.seats: list[Seat] = []
        self.refusals: list[str] = []
        """What went wrong at the address, as the environment was told."""
        self.spare: defaultdict[str, list[tuple[Seat, Reply]]] = defaultdict(list)
        """Request -> what was sampled for it when another part of it failed: whoever asks again gets it."""
        self._numbers: weakref.WeakKeyDictionary[asyncio.Task[Any], int] = weakref.WeakKeyDictionary()
        self._own: dict[int, Seat] = {}
        """Task -> the seat that it began at."""

    def number_task(self) -> int:
        """The number of the task that asks: the first is the whole group's, and 0 is a thread's."""
        try:
            task = asyncio.current_task()
        except RuntimeError:
            task = None
        return 0 if task is None else self._numbers.setdefault(task, len(self._numbers) + 1)

    def end(self, played: Mapping[Seat, Any]) -> None:
        """Tell every seat what came of it."""
        for seat, result in played.items():
            if not seat.played.done():
                seat.played.set_result(result)

    def take(self, prompt: Prompt, n: int, task: int) -> list[tuple[Seat, Reply | None]]:
        """A seat for each of `n` replies to a prompt, and the reply that it goes on from. Raises NoSeat.

        A task that plays one rollout stays at its seat, whatever it does to its history: that makes a branch.
        """
        found = self._find(prompt)
        own = self._own.get(task) if task > 1 else None
        taken: list[tuple[Seat, Reply | None]] = []
        if found is not None:
            taken.append(found)
        elif own is not None:
            taken.append((own, None))
        free = [seat for seat in self.seats if seat.is_free and all(seat is not each for each, _ in taken)]
        missing = n - len(taken)
        if missing > len(free):
            raise NoSeat(
                f"The environment begins {missing} more conversations where {len(free)} of its group's "
                f"{len(self.seats)} rollouts have none yet: what the policy says beside them, as a judge or for a "
                "draft, belongs to no rollout."
            )
        taken += [(seat, None) for seat in free[:missing]]
        if n == 1 and task > 1:
            self._own.setdefault(task, taken[0][0])
        for seat, _ in taken:
            seat.asked += 1
        return taken

    def _find(self, prompt: Prompt) -> tuple[Seat, Reply] | None:
        """The longest beginning of a prompt that was said, and where; of equal ones where nothing followed yet."""
        known = [
            (len(reply.whole), not any(each.parent is reply for each in seat.replies) and not seat.asked, seat, reply)
            for seat in self.seats
            for reply in seat.replies
            if prompt[: len(reply.whole)] == reply.whole
        ]
        if not known:
            return None
        _, _, seat, reply = max(known, key=lambda each: each[:2])
        return seat, reply


playing: ContextVar[GroupTable | None] = ContextVar("playing", default=None)
"""The group that a task of the environment plays."""


def current_key() -> str:
    """What a request says to be known by: the key of the group, and the task that asks."""
    table = playing.get()
    return NOBODY if table is None else f"{table.key}.{table.number_task()}"


def said(messages: Sequence[JsonObject]) -> Prompt:
    """Messages as they compare: white space around them and the form of their content make no difference."""
    return tuple(
        (message.get("role"), text_of(message.get("content")).strip(), _calls(message)) for message in messages
    )


def text_of(content: Any) -> str:
    """The text of a message's content, which may be in parts."""
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _calls(message: JsonObject) -> str:
    functions = [call.get("function") for call in message.get("tool_calls") or ()]
    return json.dumps(functions, sort_keys=True) if functions else ""
