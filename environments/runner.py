"""Play one group: G episodes of one problem, scored together. Every failure becomes data on its rollout.

    problem ── render ──▶ prompt tokens ── one request, n = G ──▶ G first replies
                                                                       │ each episode goes its own way
                     rollout ◀── stop, length, turns ── environment.step ◀──▶ extend, sample
                        │
              all that did not fail ── score_group ──▶ rewards

Consumes a problem and a policy, produces G rollouts. Waits for the policy and for the environment, under one deadline;
nothing but cancellation leaves `play_group`.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, TypeVarTuple

import msgspec

from environments.config import SamplingParams
from environments.env import Environment
from environments.errors import BudgetError, EpisodeError, InvalidAnswer, ProblemError, RewardError, as_data, boundary
from environments.policy import Completion, Policy
from environments.types import ErrorKind, Message, PlayedRollout, Problem, StopReason

PolicyVersion = Callable[[], int | None]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class _Episode:
    """One rollout in the making."""

    def __init__(self, problem: Problem, replica: str) -> None:
        self.state: Any = None
        self.turns = 0
        self.over = False
        self.rollout = PlayedRollout(
            token_ids=[],
            loss_mask=[],
            inference_logprobs=[],
            messages=list(problem.messages),
            tools=problem.tools,
            replica=replica,
        )

    def end(self, reason: StopReason) -> None:
        self.over = True
        self.rollout.stop_reason = reason

    def fail(self, error: EpisodeError) -> None:
        self.end(StopReason.ERROR)
        self.rollout.reward = None
        self.rollout.error = as_data(error)

    def record_turn(self, prompt_token_ids: list[int], completion: Completion) -> Message:
        """Append what the policy was given and what it sampled. Returns the reply."""
        rollout = self.rollout
        known = len(rollout.token_ids)
        given = len(prompt_token_ids) - known
        if given < 0 or prompt_token_ids[:known] != rollout.token_ids:
            # Training on it would put logprobs next to tokens they do not belong to.
            raise InvalidAnswer("The tokens of a further turn do not start with the tokens of the turns before.")
        sampled = len(completion.token_ids)
        rollout.token_ids += prompt_token_ids[known:] + completion.token_ids
        rollout.loss_mask += [0] * given + [1] * sampled
        rollout.inference_logprobs += [0.0] * given + completion.logprobs
        reply = Message("assistant", completion.text)
        rollout.messages.append(reply)
        self.turns += 1
        return reply

    def record_versions(self, sent: int | None, received: int | None, completion: Completion, waited_s: float) -> None:
        """Record the policy versions of a request: the server's labels where there are any, else those
        that were live when it was sent and answered."""
        rollout = self.rollout
        first = sent if completion.first_policy_version is None else completion.first_policy_version
        last = received if completion.last_policy_version is None else completion.last_policy_version
        if self.turns == 0:
            rollout.dispatch_policy_version = sent
            rollout.first_policy_version = first
        rollout.last_policy_version = last
        rollout.generation_s += waited_s


class _Group:
    """What the episodes of one group share."""

    def __init__(
        self,
        environment: Environment[Any],
        problem: Problem,
        policy: Policy,
        sampling: SamplingParams,
        version: PolicyVersion,
    ) -> None:
        self.environment = environment
        self.problem = problem
        self.policy = policy
        self.sampling = sampling
        self.version = version

    async def play(self, episodes: list[_Episode]) -> None:
        await asyncio.gather(*(_guard([episode], self._start, episode) for episode in episodes))
        alive = [episode for episode in episodes if not episode.over]
        if not alive:
            return
        first = await _guard(alive, self._first_turn, alive)
        if first is None:
            return
        prompt_token_ids, completions = first
        await asyncio.gather(
            *(
                _guard([episode], self._play_on, episode, prompt_token_ids, completion)
                for episode, completion in zip(alive, completions, strict=True)
            )
        )

    async def score(self, episodes: list[_Episode]) -> None:
        """Give every episode that ended well a reward, or an error."""
        rollouts = [episode.rollout for episode in episodes]
        with boundary(ErrorKind.REWARD):
            scores = await self.environment.score_group(self.problem, rollouts)
        if len(scores) != len(episodes):
            raise RewardError(f"score_group gave {len(scores)} rewards for {len(episodes)} rollouts.")
        for episode, score in zip(episodes, scores, strict=True):
            try:
                with boundary(ErrorKind.REWARD):
                    if isinstance(score, Exception):
                        raise score
                    episode.rollout.reward = _finite(score, "The reward")
                    for key, value in episode.rollout.metrics.items():
                        episode.rollout.metrics[key] = _finite(value, f"Metric {key!r}")
            except EpisodeError as error:
                episode.rollout.metrics = {}
                episode.fail(error)

    async def _start(self, episode: _Episode) -> None:
        with boundary(ErrorKind.ENVIRONMENT):
            episode.state = await self.environment.start(self.problem)

    async def _first_turn(self, episodes: list[_Episode]) -> tuple[list[int], list[Completion]]:
        with boundary(ErrorKind.POLICY):
            prompt_token_ids = await self.policy.render(self.problem.messages, self.problem.tools)
        completions = await self._sample(episodes, prompt_token_ids)
        if completions is None:
            raise BudgetError(
                f"The prompt's {len(prompt_token_ids)} tokens leave no room for a reply within "
                f"{self.sampling.max_total_tokens} tokens."
            )
        return prompt_token_ids, completions

    async def _play_on(self, episode: _Episode, prompt_token_ids: list[int], completion: Completion) -> None:
        while True:
            reply = episode.record_turn(prompt_token_ids, completion)
            if completion.finish_reason == "length":
                return episode.end(StopReason.LENGTH)
            with boundary(ErrorKind.ENVIRONMENT):
                added = await self.environment.step(episode.state, reply)
                if added and any(message.role == "assistant" for message in added):
                    raise ProblemError("The environment spoke as the assistant: those tokens are the policy's alone.")
            if not added:
                return episode.end(StopReason.STOP)
            if episode.turns >= self.sampling.max_turns:
                return episode.end(StopReason.TURNS)
            with boundary(ErrorKind.POLICY):
                rollout = episode.rollout
                behind = (list(rollout.token_ids), list(rollout.messages))
                prompt_token_ids = await self.policy.extend(*behind, added, self.problem.tools)
            completions = await self._sample([episode], prompt_token_ids)
            if completions is None:
                return episode.end(StopReason.LENGTH)
            completion = completions[0]
            episode.rollout.messages += added

    async def _sample(self, episodes: list[_Episode], prompt_token_ids: list[int]) -> list[Completion] | None:
        """Sample one reply for each episode, all at the same turn. None: no token fits any more."""
        sampling = self.sampling
        room = math.inf if sampling.max_total_tokens is None else sampling.max_total_tokens - len(prompt_token_ids)
        if room < 1:
            return None
        asked = msgspec.structs.replace(sampling, max_tokens=int(min(sampling.max_tokens, room)))
        sent, began = self.version(), time.monotonic()
        with boundary(ErrorKind.POLICY):
            completions = await self.policy.sample(prompt_token_ids, len(episodes), asked)
            if len(completions) != len(episodes):
                raise ValueError(f"the policy gave {len(completions)} replies for {len(episodes)}")
        received, waited_s = self.version(), time.monotonic() - began
        for episode, completion in zip(episodes, completions, strict=True):
            episode.record_versions(sent, received, completion, waited_s)
        return completions


async def play_group(
    environment: Environment[Any],
    problem: Problem,
    policy: Policy,
    sampling: SamplingParams,
    group_size: int,
    *,
    deadline_s: float,
    version: PolicyVersion = lambda: None,
    replica: str = "",
) -> list[PlayedRollout]:
    """Play `group_size` episodes of a problem and score them.

    `deadline_s` bounds the playing, and once more the scoring; what is unfinished then fails with kind `budget`.
    `version` tells the live policy version; it is asked when a request leaves and when its answer is in.
    """
    group = _Group(environment, problem, policy, sampling, version)
    episodes = [_Episode(problem, replica) for _ in range(group_size)]
    try:
        async with asyncio.timeout(deadline_s):
            await group.play(episodes)
    except TimeoutError:
        late = BudgetError(f"The episode was not over within {deadline_s:g} s.")
        _fail([episode for episode in episodes if not episode.over], late)
    played = [episode for episode in episodes if episode.rollout.error is None]
    if played:
        try:
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


def _finite(value: float, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RewardError(f"{what} is {value!r}, not a finite number.")
    return float(value)
