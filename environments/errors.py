"""What can go wrong while an episode is played, told apart by who has to mend it.

    EpisodeError                 becomes data on the rollout; never ends a run
    ├── PolicyError              the inference server
    │   ├── PolicyUnavailable
    │   ├── PolicyRefused
    │   ├── InvalidAnswer
    │   ├── UnfollowableTurn
    │   └── SessionOver
    ├── ProblemError             the environment's own code
    ├── RewardError              its scoring
    │   └── UnreadableVerdict
    ├── ToolError                a tool or sandbox it uses
    ├── EndpointError            a model behind an endpoint that it asks
    │   ├── EndpointUnavailable
    │   ├── EndpointRefused
    │   │   └── ConversationTooLong
    │   ├── UnreadableAnswer
    │   └── NoSuchPolicy
    └── BudgetError              time or tokens
        ├── AsksOver
        ├── ContextFull
        └── TurnsOver
    RegistryError                a mistake in a config; told to whoever wrote it
    ├── UnknownEnvironment
    └── InvalidArguments

A class's docstring is its message when none is given. Environment authors raise plain Python errors: `boundary` gives
whatever escapes the class of the boundary it crossed.
"""

import math
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from environments.types import ErrorKind, RolloutError

_MAX_MESSAGE = 2_000
"""Characters of a message that are kept: an HTML error page must not fill the database."""
_FRAMES = 4


class _Documented(Exception):
    """An exception whose docstring is its default message."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message if message is not None else " ".join((type(self).__doc__ or "").split()))


class EpisodeError(_Documented):
    """The episode broke."""

    kind: ClassVar[ErrorKind] = ErrorKind.ENVIRONMENT


class PolicyError(EpisodeError):
    """The policy could not answer."""

    kind = ErrorKind.POLICY


class PolicyUnavailable(PolicyError):
    """The inference server did not answer in time."""


class PolicyRefused(PolicyError):
    """The inference server refused the request."""


class InvalidAnswer(PolicyError):
    """The inference server's answer cannot be trained on."""


class UnfollowableTurn(PolicyError):
    """The chat template gives no exact token prefix for a further turn."""


class SessionOver(PolicyError):
    """The episode of this session is over."""


class ProblemError(EpisodeError):
    """The environment's code failed."""

    kind = ErrorKind.ENVIRONMENT


class RewardError(EpisodeError):
    """Scoring failed."""

    kind = ErrorKind.REWARD


class UnreadableVerdict(RewardError):
    """The judge's word is not what it was asked for."""


class ToolError(EpisodeError):
    """A tool failed."""

    kind = ErrorKind.TOOL


class EndpointError(EpisodeError):
    """The endpoint could not answer."""

    kind = ErrorKind.TOOL


class EndpointUnavailable(EndpointError):
    """The endpoint did not answer in time."""


class EndpointRefused(EndpointError):
    """The endpoint refused the request."""


class ConversationTooLong(EndpointRefused):
    """The conversation is longer than the model behind the endpoint reads."""


class UnreadableAnswer(EndpointError):
    """The endpoint's answer is no chat completion."""


class NoSuchPolicy(EndpointError):
    """Nobody answers under that name."""


class BudgetError(EpisodeError):
    """The episode ran out of time or tokens."""

    kind = ErrorKind.BUDGET


class AsksOver(BudgetError):
    """The group has asked other policies as often as it may."""


class ContextFull(BudgetError):
    """No token fits behind the conversation any more."""


class TurnsOver(BudgetError):
    """The session has asked the policy as often as it may."""


class RegistryError(_Documented):
    """The environment cannot be made."""


class UnknownEnvironment(RegistryError):
    """No environment has this name."""


class InvalidArguments(RegistryError):
    """The environment does not take these arguments."""


_BY_KIND: dict[ErrorKind, type[EpisodeError]] = {
    ErrorKind.POLICY: PolicyError,
    ErrorKind.ENVIRONMENT: ProblemError,
    ErrorKind.REWARD: RewardError,
    ErrorKind.TOOL: ToolError,
    ErrorKind.BUDGET: BudgetError,
}


@contextmanager
def boundary(kind: ErrorKind) -> Iterator[None]:
    """Turn whatever escapes into the `EpisodeError` of `kind`, with the original as its cause.

    An `EpisodeError` keeps its class, so the innermost boundary wins. Cancellation passes.
    """
    try:
        yield
    except EpisodeError:
        raise
    except Exception as exc:
        raise _BY_KIND[kind](f"{type(exc).__name__}: {words_of(exc)}") from exc


def finite(value: Any, what: str) -> float:
    """A reward or a metric as a plain float: numpy's numbers are numbers too. Raises RewardError."""
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise RewardError(f"{what} is {value!r}, not a finite number.")
    return number


def words_of(error: BaseException) -> str:
    """What an error says, in characters that can be written down: its own words may be an error themselves."""
    try:
        return str(error).encode(errors="replace").decode()
    except Exception:  # noqa: BLE001 - somebody's __str__
        return "an error that cannot be printed"


def as_data(error: EpisodeError) -> RolloutError:
    """Describe an error for the rollout, with the last few frames of where it began."""
    origin = error.__cause__ or error
    # A class that `boundary` chose says nothing that the kind does not; the class it caught does.
    named = origin if type(error) in _BY_KIND.values() else error
    frames = traceback.format_list(traceback.extract_tb(origin.__traceback__)[-_FRAMES:])
    # Of code in another process: where it began over there.
    began = getattr(origin, "remote_traceback", "") or "".join(frames)
    words = words_of(named)[:_MAX_MESSAGE]
    return RolloutError(kind=error.kind, type=type(named).__name__, message=words, traceback=began)
