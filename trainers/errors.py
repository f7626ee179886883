"""What can go wrong in a trainer. All of these end the process; only `RunEnded` ends it with exit status 0.

TrainerError
|-- ControlPlaneUnreachable   no usable answer within the retry budget
|-- ControlPlaneRefused       a 4xx that retrying cannot mend
|-- Superseded                a newer trainer has registered: this one must not write any more
|-- RunEnded                   the run was stopped or is finished: leave quietly
|-- CheckpointCorrupt         a manifest or a file behind it does not verify
|-- DataUnreachable           training data that the hub did not give
|-- InputFault                what the run was given cannot be trained: another start would end the same
|   |-- AdapterUnsuitable     a LoRA adapter does not fit the model or the config
|   |-- DataError             training data that cannot be trained on as asked
|   `-- ModelUnsupported      a model that does not load, or cannot be trained in the way that was asked for
`-- Diverged                  the loss, the gradient or a metric is not finite
"""


class TrainerError(Exception):
    """Base of everything the trainers raise on purpose."""


class ControlPlaneUnreachable(TrainerError):
    """The control plane gave no usable answer within the retry budget."""


class ControlPlaneRefused(TrainerError):
    """The control plane refused a request for good."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(f"{status} {code}: {detail}")
        self.status = status
        self.code = code


class Superseded(TrainerError):
    """A newer trainer of this run has registered."""


class RunEnded(TrainerError):
    """The run is stopped or finished."""


class CheckpointCorrupt(TrainerError):
    """A checkpoint does not verify against its manifest."""


class DataUnreachable(TrainerError):
    """The hub did not give the training data, this time."""


class InputFault(TrainerError):
    """What the run was given cannot be trained, however often it is tried: the run fails with this message."""


class AdapterUnsuitable(InputFault):
    """A LoRA adapter does not fit the model or the config."""


class DataError(InputFault):
    """The training data cannot be trained on as asked."""


class ModelUnsupported(InputFault):
    """The model does not load, or cannot be trained, or not in the way that the run config asks for."""


class Diverged(TrainerError):
    """The loss, the gradient or a metric is not finite."""
