"""What the control plane says no with.

ControlPlaneError
|- NotFound        404 not_found
|- Forbidden       403 forbidden
|- Conflict        409
|  |- StateConflict    409 state_conflict
|  |- StaleEpoch       409 stale_epoch
|  `- LeaseLost        409 lease_lost
|- Malformed       400 malformed
|- TooSlow         408 too_slow
|- RunOver         410 run_over
|- TooLarge        413 too_large
|- Invalid         422 invalid
|  |- ModelMissing    422 model_missing
|  `- Untrusted       422 untrusted
|- QueueFull       429 queue_full
|- TooManyFailures 429 too_many_failures
|  `- TooManyRefusals 429 too_many_refusals
`- Unavailable     503 unavailable
   `- DiskFull        503 disk_full

The docstring is the default message. Every ``code`` is stable: clients decide on it, people read the message.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

Loc = tuple[str | int, ...]
"""Keys and positions, from the outside in."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with what was sent, as data: whoever answers words it as their protocol wants."""

    loc: Loc
    message: str
    code: str = "value_error"
    value: Any = None
    """What was there, as far as it may be repeated."""
    context: dict[str, Any] | None = None
    """What else the message is about."""

    @property
    def path(self) -> str:
        """The dotted location."""
        return ".".join(map(str, self.loc))


class ControlPlaneError(Exception):
    """The control plane refused."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 400

    def __init__(self, message: str = "", *, fields: dict[str, str] | None = None) -> None:
        self.message = message or (type(self).__doc__ or "").strip()
        self.fields = fields or {}
        """Dotted path -> what is wrong there."""
        super().__init__(self.message)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.fields)


def _rebuild(kind: type[ControlPlaneError], message: str, fields: dict[str, str]) -> ControlPlaneError:
    return kind(message, fields=fields)


class NotFound(ControlPlaneError):
    """There is no such thing, or you may not see it."""

    code = "not_found"
    status = 404


class Forbidden(ControlPlaneError):
    """Your role or your token's scopes do not allow this; ask a project admin."""

    code = "forbidden"
    status = 403


class Conflict(ControlPlaneError):
    """Somebody else changed it first."""

    code = "conflict"
    status = 409


class StateConflict(Conflict):
    """It is no longer in a state that allows this."""

    code = "state_conflict"


class StaleEpoch(Conflict):
    """A newer trainer registered for this run; this one must end without writing."""

    code = "stale_epoch"


class LeaseLost(Conflict):
    """The lease expired or was taken over; drop the work."""

    code = "lease_lost"


class RunOver(ControlPlaneError):
    """The run takes no more of this: stop cleanly."""

    code = "run_over"
    status = 410


class TooLarge(ControlPlaneError):
    """The body is larger than this server takes; send fewer groups at once."""

    code = "too_large"
    status = 413


class TooSlow(ControlPlaneError):
    """The body did not come in time."""

    code = "too_slow"
    status = 408


class Unavailable(ControlPlaneError):
    """The server has as much to do as it can take. Send it again in a second."""

    code = "unavailable"
    status = 503
    retry_after_s: ClassVar[int] = 1


class DiskFull(Unavailable):
    """The disk of the database is full: nothing was stored. Free some space there, then send it again."""

    code = "disk_full"


class QueueFull(ControlPlaneError):
    """The trainer is behind: nothing more is stored until it has taken some. Try again later."""

    code = "queue_full"
    status = 429
    retry_after_s: ClassVar[int] = 5


class TooManyFailures(ControlPlaneError):
    """Too many credentials from this address opened nothing. Wait, and send one that does."""

    code = "too_many_failures"
    status = 429
    retry_after_s = 60
    """How long to wait; of an instance, from when it was raised."""

    @classmethod
    def for_seconds(cls, wait_s: int) -> "TooManyFailures":
        """The refusal of an address that has to wait so long."""
        error = cls(f"Too many credentials from this address opened nothing. Try again in {wait_s} s.")
        error.retry_after_s = wait_s
        return error


class TooManyRefusals(TooManyFailures):
    """Too much of what came from here was refused lately. Wait, and send what can be taken."""

    code = "too_many_refusals"


class Malformed(ControlPlaneError):
    """The body cannot be decoded."""

    code = "malformed"
    status = 400


class Invalid(ControlPlaneError):
    """The body does not hold together; see `fields`."""

    code = "invalid"
    status = 422

    def __init__(
        self, message: str = "", *, fields: dict[str, str] | None = None, faults: Iterable[Fault] = ()
    ) -> None:
        self.faults = (*faults, *(Fault((path,), why) for path, why in (fields or {}).items()))
        super().__init__(message, fields={fault.path: fault.message for fault in self.faults})

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_invalid, (type(self), self.message, self.faults)


def _rebuild_invalid(kind: type[Invalid], message: str, faults: tuple[Fault, ...]) -> Invalid:
    return kind(message, faults=faults)


class Untrusted(Invalid):
    """It would run code from elsewhere that no administrator allowed."""

    code = "untrusted"
    needs: Sequence[Any] = ()
    """What of it, as `rollouts.services.trust.Need`."""


class ModelMissing(Invalid):
    """No model of this name is registered, but a preset makes it."""

    code = "model_missing"
