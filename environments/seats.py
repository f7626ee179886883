"""Who sits where in the matches of a run."""

from collections.abc import Mapping
from typing import Any

from environments.env import Environment
from environments.errors import ProblemError

RUN = "run"
"""The policy of the run: it learns in every seat that it has."""


def own(seating: Mapping[str, str]) -> list[str]:
    """The seats of which each episode leaves a rollout; without seats it is one, without a name."""
    return [seat for seat, player in seating.items() if player == RUN] or [""]


def check(environment: Environment[Any], seating: Mapping[str, str]) -> None:
    """Raise ProblemError unless a run says of each seat of an environment, and of nothing else, who plays it.

    An environment of others is known only where it is played: how many rollouts a group has was settled before.
    """
    if set(seating) == set(environment.seats):
        return
    has = f"has the seats {', '.join(environment.seats)}" if environment.seats else "has no seats"
    said = ", ".join(seating) or "none"
    raise ProblemError(f"{environment.name} {has}, and the run says who plays {said}: mend environments[].seats.")
