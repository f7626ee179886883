"""What every section of a run config is: immutable, strict, and able to say all that is wrong with it at once."""

from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationInfo

STORED = {"stored": True}
"""Context of validating a config that the store holds."""


class ConfigProblem(NamedTuple):
    """One thing wrong with a run config."""

    path: str
    """Dotted key, such as `batch.batch_size`; empty for the config as a whole."""
    message: str
    """What is wrong and how to mend it, to follow the key."""
    suggestion: str = ""
    """The key, value, preset or environment that was probably meant."""

    @property
    def sentence(self) -> str:
        """The message with the suggestion, for people."""
        return f"{self.message} Did you mean {self.suggestion}?" if self.suggestion else self.message


class CrossFieldError(ValueError):
    """Several keys contradict each other; carries every contradiction, not only the first."""

    def __init__(self, problems: list[ConfigProblem]) -> None:
        super().__init__("; ".join(f"{problem.path}: {problem.message}" for problem in problems))
        self.problems = problems


def is_stored(info: ValidationInfo) -> bool:
    """Whether the config was checked before, when its run was made."""
    return info.context == STORED


class Section(BaseModel):
    """Base of every section: immutable, unknown keys refused, docstrings are descriptions."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)
