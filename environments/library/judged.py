"""An environment whose scoring takes time, because it runs what the policy wrote."""

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from environments.env import Environment
from environments.types import FinishedRollout, Problem

ArgsT = TypeVar("ArgsT", bound=msgspec.Struct)


class Judged(Environment[ArgsT]):
    """Scores the rollouts of a group beside each other."""

    @abstractmethod
    async def judge(self, problem: Problem, rollout: FinishedRollout) -> float:
        """As `reward`."""

    async def score_group(self, problem: Problem, rollouts: Sequence[FinishedRollout]) -> Sequence[float | Exception]:
        """As `Environment.score_group`; raises what is no Exception."""
        scores = await asyncio.gather(*(self.judge(problem, each) for each in rollouts), return_exceptions=True)
        for score in scores:
            if isinstance(score, BaseException) and not isinstance(score, Exception):
                raise score
        return [score for score in scores if isinstance(score, float | Exception)]
