"""What an environment is: numbered problems, an interaction, and scoring.

A single-turn environment defines `count`, `problem` and `reward`. One with more turns also defines `start` and `step`,
or plays its episodes itself with `play`; one with several players names its `seats` and defines `play_match`; one that
scores rollouts against each other defines `score_group`. Methods raise plain Python errors: the runner makes them data.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from environments.types import FinishedRollout, JsonObject, Message, PlayedRollout, Problem, Split


class SessionAddress(NamedTuple):
    """Where a program plays a session: what it sets as OPENAI_BASE_URL and OPENAI_API_KEY."""

    base_url: str
    """Ends in `/v1`, and has the key in it."""
    api_key: str


class PolicySession(Protocol):
    """The policy, for one episode."""

    @property
    def problem(self) -> Problem:
        """What is played."""
        ...

    async def reply(
        self, messages: Sequence[Message] | None = None, tools: Sequence[JsonObject] | None = None
    ) -> Message:
        """Return the next reply to a conversation, at first to the problem's. Raises EpisodeError."""
        ...

    def note(self, notes: JsonObject) -> None:
        """Keep a JSON object for `score_group`, which finds it as `rollout.notes`. The last one counts."""
        ...

    async def address(self) -> SessionAddress:
        """Return where programs play this session until it ends: the OpenAI SDK, an agent framework, a script."""
        ...


class NoArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of an environment that takes none."""


ArgsT = TypeVar("ArgsT", bound=msgspec.Struct)


class Environment(ABC, Generic[ArgsT]):
    """Source of problems, interaction and scoring. One instance serves many episodes at once: keep no episode state."""

    name: ClassVar[str]
    version: ClassVar[str] = "1"
    """Raised whenever the same key would mean another problem or another score; stored with every group played."""
    args_type: ClassVar[type[msgspec.Struct]] = NoArgs
    """What `args` of a run config is checked against; its fields and their docstrings describe it to people."""
    seats: tuple[str, ...] = ()
    """Who plays a match, in order; empty: an episode has one player. A run says of each seat which policy has it."""

    def __init__(self, args: ArgsT) -> None:
        self.args = args

    async def open(self) -> None:
        """Called once in a process of its own, on the event loop that plays, before anything is asked."""

    @abstractmethod
    def count(self, split: Split) -> int:
        """Return how many problems a split has."""

    @abstractmethod
    def problem(self, split: Split, index: int) -> Problem:
        """Return problem `index` of a split, the same one every time; `index` is below `count(split)`."""

    @property
    def plays_itself(self) -> bool:
        """Whether `play` is defined."""
        return type(self).play is not Environment.play

    async def play(self, problem: Problem, session: PolicySession) -> None:
        """Play the whole episode through a session, in place of `start` and `step`: for conversations of any shape.

        `await session.reply(messages)` gives the policy's next message; whatever is edited in between makes a branch.
        """
        raise NotImplementedError(f"{type(self).__name__} is played by start and step")

    async def play_match(self, problem: Problem, sessions: Mapping[str, PolicySession]) -> None:
        """Play one episode of all `seats`, with a session for each. Several may be asked at a time.

        Every seat that the run plays leaves a rollout, scored as any other: it has its `seat`, and what was noted on
        its session. A seat that was never asked leaves an empty one, which has a reward and trains nothing.
        """
        raise NotImplementedError(f"{type(self).__name__} has no seats")

    async def start(self, problem: Problem) -> Any:
        """Return the state of a new episode."""
        return None

    async def step(self, state: Any, reply: Message) -> list[Message] | None:
        """Answer the policy's reply; nothing to say ends the episode."""
        return None

    def reward(self, problem: Problem, rollout: FinishedRollout) -> float:
        """Score one rollout. May add figures to `rollout.metrics`."""
        raise NotImplementedError(f"{type(self).__name__} defines neither reward nor score_group")

    async def score_group(self, problem: Problem, rollouts: Sequence[FinishedRollout]) -> Sequence[float | Exception]:
        """Score the rollouts that did not fail, in order; an exception in place of a reward fails that rollout only."""
        scores: list[float | Exception] = []
        for rollout in rollouts:
            try:
                scores.append(self.reward(problem, rollout))
            except Exception as exc:  # noqa: BLE001 - one odd reply must not cost the whole group
                scores.append(exc)
        return scores

    @classmethod
    def overall(cls, means: Mapping[str, float]) -> dict[str, float]:
        """Return figures of an evaluation that no rollout has, from the mean of each metric over those that have it."""
        return {}

    def solution(self, problem: Problem) -> list[Message] | None:
        """Return a whole conversation that solves the problem, to warm a model up by SFT; None: there is none."""
        return None

    def match_solution(self, problem: Problem) -> Mapping[str, list[Message]] | None:
        """Return the conversation of every seat in a match that all play well; None: nobody knows how."""
        return None


def last_reply(rollout: PlayedRollout) -> str:
    """Return the text of the policy's last reply."""
    return next(message.text for message in reversed(rollout.messages) if message.role == "assistant")
