"""Play one group: G episodes of one problem, scored together. Every failure becomes data on its rollout.

    problem ── render ──▶ prompt tokens ── one call, n = G ─────▶ G first replies
                                                                       │ each episode goes its own way
                     session ◀── stop, length, turns ── environment.step ◀──▶ ask
                        │                or, all of it: environment.play(problem, session)
                        │                or, of several seats: environment.play_match(problem, sessions)
                     rollout
                        │
              all that did not fail ── score_group ──▶ rewards

Consumes a problem and a policy, produces G rollouts. Waits for the policy and for the environment, under one deadline;
nothing but cancellation leaves `play_group`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar, TypeVarTuple

from environments.chat.base import Chat
from environments.chat.template import TemplateChat
from environments.config import SamplingParams
from environments.env import Environment, PolicySession
from environments.errors import (
    BudgetError,
    ContextFull,
    EpisodeError,
    ProblemError,
    RewardError,
    TurnsOver,
    as_data,
    boundary,
    finite,
)
from environments.policy import Policy
from environments.session import Gateway, PolicyVersion, Session
from environments.speakers import Speaker, SpokenSession
from environments.traffic import Traffic
from environments.turns import Turn
from environments.types import ErrorKind, FinishedRollout, PlayedRollout, Problem, Span, SpanKind, StopReason

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

Player = Callable[[Problem], PolicySession]
"""Takes a seat that the run does not play, for one match."""


class _Episode:
    """One rollout in the making."""

    def __init__(self, session: Session, replica: str, seat: str = "") -> None:
        self.session = session
        self.seat = seat
        self.state: Any = None
        self.rollout = FinishedRollout(token_ids=[], loss_mask=[], inference_logprobs=[])
        """Written when the episode is over."""
        self.is_over = False
        self._replica = replica

    def end(self, reason: StopReason | None = None) -> None:
        """It ended well; without a reason the session knows which one it was."""
        self._close()
        if reason is not None:
            self.rollout.stop_reason = reason

    def fail(self, error: EpisodeError) -> None:
        """It broke, while it was played or while it was scored."""
        self._close()
        self.rollout.stop_reason = StopReason.ERROR
        self.rollout.reward = None
        self.rollout.error = as_data(error)

    def _close(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.rollout = self.session.end()
            self.rollout.replica = self._replica
            self.rollout.seat = self.seat


class _Group:
    """What the episodes of one group share."""

    def __init__(self, environment: Environment[Any], problem: Problem, others: Mapping[str, Player]) -> None:
        self.environment = environment
        self.problem = problem
        self.others = others

    async def play(self, episodes: list[_Episode]) -> None:
        if self.environment.seats:
            size = len(self.environment.seats) - len(self.others)
            matches = [episodes[at : at + size] for at in range(0, len(episodes), size)]
            await asyncio.gather(*(_guard(match, self._play_match, match) for match in matches))
            return
        if self.environment.plays_itself:
            await asyncio.gather(*(_guard([episode], self._play_itself, episode) for episode in episodes))
            return
        await asyncio.gather(*(_guard([episode], self._start, episode) for episode in episodes))
        alive = [episode for episode in episodes if not episode.is_over]
        together = bool(alive) and alive[0].session.shares_prompts
        asking = [alive] if together else [[episode] for episode in alive]
        await asyncio.gather(*(_guard(each, self._first_turn, each) for each in asking))
        alive = [episode for episode in alive if not episode.is_over]
        await asyncio.gather(*(_guard([episode], self._play_on, episode) for episode in alive))

    async def score(self, episodes: list[_Episode]) -> None:
        """Give every episode that ended well a reward, or an error."""
        rollouts = [episode.rollout for episode in episodes]
        began = time.monotonic()
        with boundary(ErrorKind.REWARD):
            scores = await self.environment.score_group(self.problem, rollouts)
        for rollout in rollouts:
            at = sum(span.seconds for span in rollout.spans[-1:]) + (rollout.spans[-1].began_s if rollout.spans else 0)
            rollout.spans.append(Span(SpanKind.SCORING, round(at, 4), round(time.monotonic() - began, 4)))
            rollout.notes = {}
        if len(scores) != len(episodes):
            raise RewardError(f"score_group gave {len(scores)} rewards for {len(episodes)} rollouts.")
        for episode, score in zip(episodes, scores, strict=True):
            try:
                with boundary(ErrorKind.REWARD):
                    if isinstance(score, Exception):
                        raise score
                    episode.rollout.reward = finite(score, "The reward")
                    for key, value in episode.rollout.metrics.items():
                        episode.rollout.metrics[key] = finite(value, f"Metric {key!r}")
            except EpisodeError as error:
                episode.rollout.metrics = {}
                episode.fail(error)

    async def _play_itself(self, episode: _Episode) -> None:
        await self._play_whole([episode], self.environment.play(self.problem, episode.session))

    async def _play_match(self, match: Sequence[_Episode]) -> None:
        own = {episode.seat: episode.session for episode in match}
        sessions = {
            seat: own[seat] if seat in own else self.others[seat](self.problem) for seat in self.environment.seats
        }
        await self._play_whole(match, self.environment.play_match(self.problem, sessions))

    async def _play_whole(self, episodes: Sequence[_Episode], playing: Awaitable[None]) -> None:
        """What a budget ended is over like any other, once there is something to score."""
        try:
            with boundary(ErrorKind.ENVIRONMENT):
                await playing
        except (ContextFull, TurnsOver):
            if not any(episode.session.turns for episode in episodes):
                raise
        if not (self.others or any(episode.session.turns for episode in episodes)):
            raise ProblemError("The environment never asked the policy: there is nothing to score.")
        for episode in episodes:
            episode.end()

    async def _start(self, episode: _Episode) -> None:
        with boundary(ErrorKind.ENVIRONMENT):
            episode.state = await self.environment.start(self.problem)

    async def _first_turn(self, episodes: list[_Episode]) -> None:
        asked = await episodes[0].session.ask(self.problem.messages, n=len(episodes), shared=True)
        for number, episode in enumerate(episodes):
            episode.session.deliver(asked.only(number))

    async def _play_on(self, episode: _Episode) -> None:
        session = episode.session
        while True:
            turn = session.turns.newest
            if turn.completion.finish_reason == "length":
                return episode.end(StopReason.LENGTH)
            with boundary(ErrorKind.ENVIRONMENT):
                added = await self.environment.step(episode.state, turn.reply)
                if added and any(message.role == "assistant" for message in added):
                    raise ProblemError("The environment spoke as the assistant: those tokens are the policy's alone.")
            if not added:
                return episode.end(StopReason.STOP)
            try:
                session.deliver(await session.ask([*turn.conversation, *added]))
            except ContextFull:
                return episode.end(StopReason.LENGTH)
            except TurnsOver:
                return episode.end(StopReason.TURNS)


async def play_group(
    environment: Environment[Any],
    problem: Problem,
    policy: Policy | Speaker,
    sampling: SamplingParams,
    group_size: int,
    *,
    deadline_s: float,
    chat: Chat | None = None,
    gateway: Gateway | None = None,
    version: PolicyVersion = lambda: None,
    replica: str = "",
    traffic: Traffic | None = None,
    heard: Callable[[Turn], None] = lambda _turn: None,
    others: Mapping[str, Player] | None = None,
) -> list[PlayedRollout]:
    """Play `group_size` episodes of a problem and score them. Of an environment with seats, each leaves a rollout for
    every seat that none of the `others` has, in the order of the seats, one match after another.

    `deadline_s` bounds the playing, and once more the scoring; what is unfinished then fails with kind `budget`.
    `chat` is the format of the policy's model, by default its template alone; a `Speaker` has none. `gateway` gives
    sessions an address for programs. `version` tells the live policy version; it is asked when a request leaves and
    when its answer is in. `traffic`: what all groups that are played beside this one ask for together. `heard` is told
    every turn of every episode when it is recorded.
    """
    group = _Group(environment, problem, others or {})
    traffic = traffic or Traffic()

    spoken = chat if chat is not None or isinstance(policy, Speaker) else TemplateChat(policy)

    def make() -> Session:
        if isinstance(policy, Speaker):
            return SpokenSession(problem, policy, sampling, version=version, traffic=traffic, heard=heard)
        assert spoken is not None
        return Session(
            problem, policy, spoken, sampling, version=version, gateway=gateway, traffic=traffic, heard=heard
        )

    seats = [seat for seat in environment.seats if seat not in group.others] or [""]
    episodes = [_Episode(make(), replica, seat) for _ in range(group_size) for seat in seats]
    try:
        with traffic.open(len(episodes)):
            async with asyncio.timeout(deadline_s):
                await group.play(episodes)
    except TimeoutError:
        late = BudgetError(f"The episode was not over within {deadline_s:g} s.")
        _fail([episode for episode in episodes if not episode.is_over], late)
    played = [episode for episode in episodes if episode.rollout.error is None]
    if played:
        try:
            with traffic.scored(len(played)):
                async with asyncio.timeout(deadline_s):
                    await _guard(played, group.score, played)
        except TimeoutError:
            _fail(played, BudgetError(f"Scoring was not over within {deadline_s:g} s."))
    return [episode.rollout for episode in episodes]


async def _guard(episodes: Sequence[_Episode], work: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T | None:
    """Await `work(*args)`; if it breaks, it is these episodes that fail."""
    try:
        # What has no boundary of its own is the runner's, or the environment's data: nobody else can mend it.
        with boundary(ErrorKind.ENVIRONMENT):
            return await work(*args)
    except EpisodeError as error:
        _fail(episodes, error)
        return None


def _fail(episodes: Sequence[_Episode], error: EpisodeError) -> None:
    for episode in episodes:
        episode.fail(error)
