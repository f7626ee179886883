"""Episodes in which every reply is known beforehand, through the real runner."""

import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from typing import Any

from environments.chat.template import TemplateChat
from environments.config import SamplingParams
from environments.env import Environment, SessionAddress
from environments.errors import SessionOver
from environments.fakes import ScriptedPolicy
from environments.policy import Completion
from environments.runner import play_group
from environments.solutions import of_problem
from environments.types import JsonObject, Message, PlayedRollout, Problem, Split, StopReason

RandomPlayer = Callable[[Problem, random.Random], Sequence[Message]]
"""Replies of somebody who knows the form and nothing else; they go round until the episode is over."""

MOST_TURNS = 64
DEADLINE_S = 120.0
_OTHER_SHARE = 0.75
"""Of the random player's episodes that try what solves another problem."""
_MOST_WORDS, _MOST_REPLIES = 20, 8
_SHOWN = 80
"""Characters."""


class _Numbered(TemplateChat):
    """The policy says the number of a message, so that a long one costs no tokens."""

    def __init__(self, policy: ScriptedPolicy, messages: Sequence[Message]) -> None:
        super().__init__(policy)
        self._messages = messages

    def parse(self, prompt_token_ids: list[int], completion: Completion, tools: Sequence[JsonObject] | None) -> Message:
        return self._messages[int(completion.text)]


async def played(
    environment: Environment[Any],
    problem: Problem,
    replies: Sequence[str | Message],
    *,
    seat: str = "",
    max_turns: int = MOST_TURNS,
    deadline_s: float = DEADLINE_S,
) -> PlayedRollout:
    """Play and score one episode in which the policy gives these replies, going round, with their calls of tools.

    `seat`: which one it has in a match; the others say what `match_solution` does, whatever is said to them.
    """
    messages = [Message("assistant", reply) if isinstance(reply, str) else reply for reply in replies]
    policy = ScriptedPolicy([str(number) for number in range(len(messages))])
    sampling = SamplingParams(max_turns=max_turns)
    solved = of_problem(environment, problem)
    [rollout] = await play_group(
        environment,
        problem,
        policy,
        sampling,
        1,
        deadline_s=deadline_s,
        chat=_Numbered(policy, messages),
        others={
            other: partial(ScriptedSession, replies=replies_of(solved.get(other, ())))
            for other in environment.seats
            if other != seat
        },
    )
    return rollout


class ScriptedSession:
    """Who says what is known beforehand, going round; nothing at all if that is nothing."""

    def __init__(self, problem: Problem, replies: Sequence[Message]) -> None:
        self.problem = problem
        self._replies = cycle(replies or [Message("assistant", "")])

    async def reply(
        self, messages: Sequence[Message] | None = None, tools: Sequence[JsonObject] | None = None
    ) -> Message:
        """As `PolicySession.reply`."""
        return next(self._replies)

    def note(self, notes: JsonObject) -> None:
        """As `PolicySession.note`; nobody scores it."""

    async def address(self) -> SessionAddress:
        """As `PolicySession.address`. Raises SessionOver."""
        raise SessionOver("What is known beforehand is asked nowhere.")


def replies_of(solution: Sequence[Message]) -> list[Message]:
    """What the policy says in a conversation that solves a problem."""
    return [message for message in solution if message.role == "assistant"]


def some_player(environment: Environment[Any]) -> RandomPlayer:
    """Says, for the most part, what solves another problem; else words of its own problem in any order."""

    def replies(problem: Problem, rng: random.Random) -> Sequence[Message]:
        other = environment.problem(Split.TRAIN, int(rng.random() * environment.count(Split.TRAIN)))
        if rng.random() < _OTHER_SHARE and other.key != problem.key and (found := of_problem(environment, other)):
            return replies_of(rng.choice(list(found.values())))
        words = " ".join(message.text for message in problem.messages).split() or ["a"]
        return [
            Message("assistant", " ".join(rng.choices(words, k=rng.randint(1, _MOST_WORDS))))
            for _ in range(rng.randint(1, _MOST_REPLIES))
        ]

    return replies


def difference(rollout: PlayedRollout, solution: Sequence[Message]) -> str:
    """Where an episode of a solution's replies goes another way than the solution says; empty: nowhere."""
    if rollout.stop_reason is not StopReason.STOP:
        return f"the episode goes on where the solution is over ({rollout.stop_reason})"
    if rollout.earlier_branches:
        return ""  # its history was edited on the way, which no single conversation shows
    for one, two in zip(rollout.messages, solution, strict=False):
        if (one.role, one.text, one.tool_calls) != (two.role, two.text, two.tool_calls):
            return f"the {one.role} says {one.text[:_SHOWN]!r} where the solution has {two.text[:_SHOWN]!r}"
    if len(rollout.messages) != len(solution):
        return f"the episode has {len(rollout.messages)} messages, the solution {len(solution)}"
    return ""
