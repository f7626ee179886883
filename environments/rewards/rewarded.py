"""An environment whose rewards are named in its arguments."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from environments.env import Environment
from environments.rewards.registry import RewardPart, Rewards
from environments.types import FinishedRollout, Problem


class RewardedArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of every such environment; its own come beside them."""

    rewards: Annotated[
        list[RewardPart] | None, Meta(description="What is added up; by default the environment's own.")
    ] = None


ArgsT = TypeVar("ArgsT", bound=RewardedArgs)


class Rewarded(Environment[ArgsT]):
    """Scores by the rewards of its arguments. A class says which those are where nobody names any."""

    default_rewards: Sequence[RewardPart] = ()

    def __init__(self, args: ArgsT) -> None:
        super().__init__(args)
        self._rewards = Rewards(self.default_rewards if args.rewards is None else args.rewards)

    async def score_group(self, problem: Problem, rollouts: Sequence[FinishedRollout]) -> Sequence[float | Exception]:
        scores = await asyncio.gather(
            *(self._rewards.score(problem, rollout) for rollout in rollouts), return_exceptions=True
        )
        return [score if isinstance(score, float) else _failure(score) for score in scores]


def _failure(raised: BaseException) -> Exception:
    if isinstance(raised, Exception):
        return raised
    raise raised
