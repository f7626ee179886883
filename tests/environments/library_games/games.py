"""Episodes of the games without a policy: what was replied, and what it is worth."""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from environments.env import Environment
from environments.types import FinishedRollout, Message, Problem, Split


def said(problem: Problem, *replies: str) -> FinishedRollout:
    """An episode of these replies; what the environment answered scores nothing."""
    messages = [*problem.messages, *(Message("assistant", reply) for reply in replies)]
    return FinishedRollout(token_ids=[], loss_mask=[], inference_logprobs=[], messages=messages)


def solved(environment: Environment[Any], problem: Problem) -> list[str]:
    """The replies of the solution."""
    return [message.text for message in environment.solution(problem) or [] if message.role == "assistant"]


def mean(environment: Environment[Any], problems: int, replies: Callable[[Problem], Sequence[str]]) -> float:
    """The reward of a player, over the first problems."""
    found = [environment.problem(Split.TRAIN, index) for index in range(problems)]
    return fmean(environment.reward(problem, said(problem, *replies(problem))) for problem in found)
