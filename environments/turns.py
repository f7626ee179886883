"""What was sampled in one session, as a tree of turns; and the branches that it trains.

    root ─▶ turn 1 ─▶ turn 2 ─▶ turn 4        two leaves, two branches: 1 2 4 and 1 3
                   └▶ turn 3                  turn 1 trains in the first, and stands in the other with a mask of 0

A request whose messages go on from a turn extends it; one whose history differs anywhere goes on from the last turn
that both share. Nothing is compared but what was said: white space around it, text in parts, reasoning that a client
left out, or how it writes the numbers of a call make no difference, because the tokens behind are those that were
sampled whatever a client echoes.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from environments.policy import Completion
from environments.types import JsonObject, Message, PlayedRollout, StopReason

_Said = tuple[Any, ...]


@dataclass(slots=True, eq=False)
class Turn:
    """One reply of the policy, with what it was told since the turn before."""

    parent: "Turn | None"
    messages: list[Message]
    """What was added, and the reply last."""
    given: list[int]
    """Tokens between the turn before and the reply; the whole prompt of a first turn."""
    completion: Completion
    tools: list[JsonObject]
    children: "list[Turn]" = field(default_factory=list)
    said: list[_Said] = field(init=False)
    """What the messages say: each request is compared with all of it."""

    def __post_init__(self) -> None:
        self.said = [_said(message) for message in self.messages]

    @property
    def reply(self) -> Message:
        """What the policy said."""
        return self.messages[-1]

    @property
    def path(self) -> "list[Turn]":
        """The turns up to this one, the first first."""
        turns = [self]
        while (parent := turns[-1].parent) is not None:
            turns.append(parent)
        return turns[::-1]

    @property
    def token_ids(self) -> list[int]:
        """All tokens up to the end of the reply."""
        return [token for turn in self.path for token in (*turn.given, *turn.completion.token_ids)]

    @property
    def conversation(self) -> list[Message]:
        """All messages up to the reply."""
        return [message for turn in self.path for message in turn.messages]


class Turns:
    """The turns of one session."""

    def __init__(self) -> None:
        self._turns: list[Turn] = []
        """Each behind its parent."""

    def __len__(self) -> int:
        return len(self._turns)

    def __iter__(self) -> Iterator[Turn]:
        return iter(self._turns)

    @property
    def newest(self) -> Turn:
        """The last turn that was added. Raises IndexError."""
        return self._turns[-1]

    def find(self, messages: Sequence[Message], tools: Sequence[JsonObject]) -> tuple[Turn | None, list[Message]]:
        """The last turn that the messages go on from, and what they add to it. None: they begin a conversation."""
        said, told = [_said(message) for message in messages], list(tools)

        def end(turn: Turn, at: int) -> int | None:
            until = at + len(turn.said)
            # The reply first: it is what tells siblings apart.
            is_next = until <= len(said) and said[until - 1] == turn.said[-1] and said[at:until] == turn.said
            return until if is_next and (turn.parent is not None or turn.tools == told) else None

        found, at = self._furthest(end)
        return found, list(messages[at:])

    def find_tokens(self, token_ids: list[int]) -> Turn | None:
        """The last turn whose tokens a prompt begins with."""

        def end(turn: Turn, at: int) -> int | None:
            given, sampled = turn.given, turn.completion.token_ids
            begin = at + len(given)
            until = begin + len(sampled)
            is_next = token_ids[begin:until] == sampled and token_ids[at:begin] == given
            return until if is_next else None

        return self._furthest(end)[0]

    def _furthest(self, end: Callable[[Turn, int], int | None]) -> tuple[Turn | None, int]:
        """The turn that a request follows furthest, and to where.

        `end` tells where a turn that begins at a place of the request ends; None: the request says something else.
        Replies may read the same, and only one of them be what the conversation went on from, so all are followed. Of
        those that lead equally far the newest goes on: a client that asks twice keeps the second answer.
        """
        found, furthest = None, 0
        ends: dict[Turn | None, int] = {None: 0}
        for turn in self._turns:
            if (at := ends.get(turn.parent)) is None or (until := end(turn, at)) is None:
                continue
            ends[turn] = until
            if until >= furthest:
                found, furthest = turn, until
        return found, furthest

    def add(
        self,
        parent: Turn | None,
        added: Sequence[Message],
        given: list[int],
        completion: Completion,
        reply: Message,
        tools: Sequence[JsonObject],
    ) -> Turn:
        """Record a reply to what was added behind a turn."""
        turn = Turn(parent, [*added, reply], given, completion, list(tools))
        if parent is not None:
            parent.children.append(turn)
        self._turns.append(turn)
        return turn

    def branches(self) -> Iterator[list[Turn]]:
        """The path to each leaf; the one with the newest turn last."""
        return (turn.path for turn in self._turns if not turn.children)

    def fill(self, rollout: PlayedRollout) -> None:
        """Write tokens, branches and conversation to a rollout that has none yet."""
        trained: set[int] = set()
        for path in self.branches():
            begin = len(rollout.token_ids)
            for turn in path:
                sampled = turn.completion.token_ids
                is_new = id(turn) not in trained
                trained.add(id(turn))
                rollout.token_ids += turn.given + sampled
                rollout.loss_mask += [0] * len(turn.given) + [int(is_new)] * len(sampled)
                logprobs = turn.completion.logprobs if is_new else [0.0] * len(sampled)
                rollout.inference_logprobs += [0.0] * len(turn.given) + logprobs
            rollout.branch_lengths.append(len(rollout.token_ids) - begin)
            rollout.earlier_branches.append(path[-1].conversation)
            rollout.tools = path[-1].tools
        if rollout.earlier_branches:
            rollout.messages = rollout.earlier_branches.pop()
        if len(rollout.branch_lengths) == 1:
            rollout.branch_lengths = []
        elif not rollout.token_ids:  # a speaker's: its last branch tells how it ended
            rollout.branch_lengths, rollout.earlier_branches = [], []
        if self._turns and self.newest.completion.finish_reason == "length":
            rollout.stop_reason = StopReason.LENGTH


def _said(message: Message) -> _Said:
    """What a message says, however it is written."""
    calls = tuple((call.function.name, _arguments(call.function.arguments)) for call in message.tool_calls)
    return (message.role, message.name, message.text.strip(), calls, message.tool_call_id)


def _arguments(arguments: str) -> Any:
    try:
        return msgspec.json.encode(json.loads(arguments, parse_float=_number), order="sorted")
    except (ValueError, RecursionError):
        return arguments.strip()


def _number(written: str) -> float:
    """A number with a point or an exponent. A whole one is the integer: JavaScript writes 1.0 as 1, and 1e3 as 1000."""
    number = float(written)
    return int(number) if number.is_integer() else number
