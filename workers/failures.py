"""Rollouts of what could not be played, and the evidence on them."""

from typing import Any

import msgspec

from environments import seats
from environments.env import Environment
from environments.errors import EpisodeError, ProblemError, as_data, words_of
from environments.isolated import Isolated
from environments.types import Claim, ErrorKind, PlayedRollout, StopReason

_MAX_STDERR = 2_000
"""Characters."""


def failed(claim: Claim, error: Exception) -> list[PlayedRollout]:
    """The rollouts of a group that could not be played."""
    return [failed_episode(error, seat) for _ in range(claim.group_size) for seat in seats.own(claim.seats)]


def failed_episode(error: Exception, seat: str = "") -> PlayedRollout:
    """The rollout of one that could not be played."""
    told = error if isinstance(error, EpisodeError) else ProblemError(f"{type(error).__name__}: {words_of(error)}")
    if told is not error:
        told.__cause__ = error
    return PlayedRollout(
        seat=seat,
        token_ids=[],
        loss_mask=[],
        inference_logprobs=[],
        stop_reason=StopReason.ERROR,
        error=as_data(told),
    )


def add_stderr(rollouts: list[PlayedRollout], environment: Environment[Any]) -> None:
    """Give failures of an environment in a process what that had written by then."""
    if isinstance(environment, Isolated) and (written := environment.recent_stderr):
        for rollout in rollouts:
            if rollout.error is not None and rollout.error.kind is not ErrorKind.POLICY:
                rollout.error = msgspec.structs.replace(rollout.error, stderr=written[-_MAX_STDERR:])
