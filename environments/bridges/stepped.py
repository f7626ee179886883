"""What the bridges to libraries of steps share: an episode is told a reply, and says what the policy is told next.

    problem: a seed ─▶ the first observation      play: reply ─▶ act ─▶ observation ─▶ reply ─▶ ... ─▶ notes ─▶ reward

A bridge opens an episode for a seed. Episodes of one process do not wait for each other: what blocks has a thread of
its own, which also keeps libraries that are bound to a thread in theirs.
"""

import asyncio
import math
import re
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any, ParamSpec, Protocol, TypeVar

import msgspec
from msgspec import Meta

from environments.env import Environment, PolicySession
from environments.errors import ProblemError, RewardError
from environments.types import FinishedRollout, JsonObject, Message, Problem, Split

EVAL_SEEDS = 2**30
"""Where the seeds of the eval split begin; those of the train split end below it."""
_MAX_TITLE = 150
_MOST_FIGURES = 32
_MAX_FIGURE_NAME = 60
"""Characters."""
_ACTION = re.compile(r"<action>(.*?)</action>", re.DOTALL | re.IGNORECASE)

P = ParamSpec("P")
T = TypeVar("T")


class SteppedArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments that all of them take."""

    system_prompt: Annotated[
        str, Meta(description="System message; empty: what the bridge says of the actions and nothing else.")
    ] = ""
    max_steps: Annotated[int, Meta(ge=1, description="Replies that are answered, invalid ones among them.")] = 50
    invalid_penalty: Annotated[float, Meta(ge=0, description="What an invalid action costs of the reward.")] = 0.0
    first_seed: Annotated[int, Meta(ge=0, lt=2**29, description="Seed of problem 0 of either split.")] = 0
    train_count: Annotated[int, Meta(ge=1, lt=2**29, description="Problems to train on, each of its own seed.")] = (
        10_000
    )
    eval_count: Annotated[int, Meta(ge=1, lt=2**29, description="Held-out problems, of seeds of their own.")] = 256


class InvalidAction(Exception):
    """The policy's reply is no action; the message tells the policy which ones there are."""


class Outcome(msgspec.Struct, frozen=True):
    """What an episode is worth, were it to end now."""

    reward: float
    metrics: dict[str, float]
    is_over: bool


class SteppedEpisode(Protocol):
    """One episode. Its methods are called one after another."""

    async def start(self) -> str:
        """Return the first observation."""
        ...

    async def act(self, action: str) -> str:
        """Take an action; return what the policy is told. Raises InvalidAction, having changed nothing."""
        ...

    def outcome(self) -> Outcome:
        """Return what it is worth, before the penalty for invalid actions."""
        ...

    async def close(self) -> None:
        """Give up what it holds."""
        ...


ArgsT = TypeVar("ArgsT", bound=SteppedArgs)


class Stepped(Environment[ArgsT]):
    """An environment whose problems are seeds."""

    library: str
    """The package of it, whose version is part of the environment's."""

    def __init__(self, args: ArgsT) -> None:
        super().__init__(args)
        self.version = f"{type(self).version}+{self.library}-{version(self.library)}"  # type: ignore[misc]  # scores may change with it

    @abstractmethod
    def _title(self) -> str:
        """Return what every key begins with."""

    @abstractmethod
    def _instructions(self) -> str:
        """Tell the policy what actions are."""

    @abstractmethod
    def _open(self, seed: int) -> SteppedEpisode:
        """Return a new episode, not begun."""

    def _first(self, seed: int) -> str | None:
        """Return the first observation of a seed; None: it is known only where it is played. May block."""

        async def ask() -> str:
            episode = self._open(seed)
            try:
                return await episode.start()
            finally:
                await episode.close()

        return asyncio.run(ask())

    def count(self, split: Split) -> int:
        return self.args.train_count if split is Split.TRAIN else self.args.eval_count

    def problem(self, split: Split, index: int) -> Problem:
        seed = self.args.first_seed + index + (EVAL_SEEDS if split is Split.EVAL else 0)
        first = self._first(seed)
        told = self._title() if first is None else first
        return Problem(
            key=f"{short(self._title())}:{seed}",
            messages=[*self._system(), Message("user", told)],
            data={"seed": seed, "is_posed": first is not None},
        )

    async def play(self, problem: Problem, session: PolicySession) -> None:
        """Answer replies until the episode is over, or has had `max_steps` of them."""
        episode = self._open(problem.data["seed"])
        try:
            await self._play(problem, session, episode)
        finally:
            await episode.close()

    async def _play(self, problem: Problem, session: PolicySession, episode: SteppedEpisode) -> None:
        first = await episode.start()
        if problem.data["is_posed"] and problem.messages[-1].text != first:
            raise ProblemError(
                f"{problem.key} began otherwise this time: rewards of a group compare only if its episodes begin "
                "alike. Make its start depend on the seed alone."
            )
        messages = [*self._system(), Message("user", first)]
        invalid = 0
        for step in range(1, self.args.max_steps + 1):
            reply = await session.reply(messages)
            is_valid = 1.0
            try:
                told = await episode.act(action_in(reply.text))
            except InvalidAction as fault:
                told, is_valid = str(fault), 0.0
            invalid += not is_valid
            outcome = episode.outcome()
            session.note(_notes(outcome, step, invalid, is_truncated=step == self.args.max_steps))
            if outcome.is_over:
                return
            messages += [reply, Message("user", told)]

    def reward(self, problem: Problem, rollout: FinishedRollout) -> float:
        """What the episode is worth, less the penalty for invalid actions."""
        if not rollout.notes:
            raise RewardError("The episode ended before the environment had answered a reply.")
        rollout.metrics.update(rollout.notes["metrics"])
        penalty = self.args.invalid_penalty * rollout.metrics["invalid_actions"]
        rollout.metrics["invalid_penalty"] = penalty
        return float(rollout.notes["reward"]) - penalty

    def _system(self) -> list[Message]:
        parts = [part for part in (self.args.system_prompt, self._instructions()) if part]
        return [Message("system", "\n\n".join(parts))] if parts else []


def _notes(outcome: Outcome, steps: int, invalid: int, *, is_truncated: bool) -> JsonObject:
    metrics = {"steps": float(steps), "invalid_actions": float(invalid), **outcome.metrics}
    metrics.setdefault("terminated", float(outcome.is_over))
    metrics.setdefault("truncated", 0.0)
    if is_truncated and not outcome.is_over:
        metrics["truncated"] = 1.0
    return {"reward": outcome.reward, "metrics": metrics}


def action_in(text: str) -> str:
    """The last `<action>...</action>` of a reply, or all of it behind its reasoning."""
    found = _ACTION.findall(text)
    return (found[-1] if found else text.rpartition("</think>")[2]).strip()


def figures(values: Any, prefix: str) -> dict[str, float]:
    """The numbers among named values, as metrics: parts of a reward, for the most part."""
    if not isinstance(values, dict):
        return {}
    found = {}
    for name, value in values.items():
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            continue
        if math.isfinite(number) and len(str(name)) <= _MAX_FIGURE_NAME and not isinstance(value, str):
            found[f"{prefix}/{name}"] = number
    return dict(list(found.items())[:_MOST_FIGURES])


def short(title: str) -> str:
    """A title that fits into a key."""
    return (
        title if len(title) <= _MAX_TITLE else f"{title[: _MAX_TITLE - 17]}-{sha256(title.encode()).hexdigest()[:16]}"
    )


def named(path: str, what: str) -> Any:
    """Import `module:attribute`. Raises ValueError, which names it."""
    module, _, attribute = path.partition(":")
    if not attribute:
        raise ValueError(f"{what} {path!r} is not of the form module:attribute")
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:  # it is anybody's code
        raise ValueError(f"{what} {path!r} cannot be imported: {type(error).__name__}: {error}") from error


class OwnThread:
    """Where an episode of a library that blocks lives: each call in the same thread, which is its alone."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="episode")

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call it there."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, lambda: work(*args, **kwargs))

    def end(self, work: Callable[[], object]) -> None:
        """Call it there as the last, and wait for nothing: a thread that hangs must hold up nobody."""
        self._executor.submit(work)
        self._executor.shutdown(wait=False)
