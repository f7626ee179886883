"""What the control plane says no with.

ControlPlaneError
|- NotFound        404 not_found
|- Forbidden       403 forbidden
|- Conflict        409
|  |- StateConflict    409 state_conflict
|  |- StaleEpoch       409 stale_epoch
|  `- LeaseLost        409 lease_lost
|- RunOver         410 run_over
|- TooLarge        413 too_large
|- QueueFull       429 queue_full
`- Invalid         422 invalid
   `- ModelMissing    422 model_missing

The docstring is the default message. Every ``code`` is stable: clients decide on it, people read the message.
"""

from typing import ClassVar


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


class QueueFull(ControlPlaneError):
    """The trainer is behind: nothing more is stored until it has taken some. Try again later."""

    code = "queue_full"
    status = 429
    retry_after_s: ClassVar[int] = 5


class Invalid(ControlPlaneError):
    """The body does not hold together; see `fields`."""

    code = "invalid"
    status = 422


class ModelMissing(Invalid):
    """No model of this name is registered, but a preset makes it."""

    code = "model_missing"
