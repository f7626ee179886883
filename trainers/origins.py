"""Where a value of a run config came from: a kind that programs decide on, and a name that people want to see."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple


class OriginKind(StrEnum):
    """Who set a value. The text is what people read, but for `REQUEST`."""

    DEFAULT = "default"
    ENVIRON = "environment"
    PRESET = "preset"
    FILE = "file"
    REQUEST = "request"
    """The body of an API request."""
    COMMAND_LINE = "command line"
    FORM = "launch form"
    FORM_TOML = "launch form, TOML"
    RUN = "run"
    """Cloned, or whose checkpoints are measured."""
    FORK = "fork of"
    MODEL = "model"
    """A registered model's name, in place of which its directory is in the config; behind it, who named it."""
    OTHER = "other"
    """One that this version does not know."""


class Origin(NamedTuple):
    """Stored as a list of two texts. ``str`` is for people."""

    kind: OriginKind
    name: str = ""
    """Which preset, file, variable, run or checkpoint."""

    @classmethod
    def read(cls, stored: Any) -> "Origin":
        """From how it is stored."""
        kind, name = stored
        known = kind in OriginKind.__members__.values()
        return cls(OriginKind(kind), name) if known else cls(OriginKind.OTHER, f"{kind} {name}".strip())

    def __str__(self) -> str:
        if self.kind is OriginKind.OTHER:
            return self.name
        return f"{_WORDS.get(self.kind, self.kind)} {self.name}".strip()


_WORDS = {OriginKind.REQUEST: "REST request"}


DEFAULT = Origin(OriginKind.DEFAULT)
COMMAND_LINE = Origin(OriginKind.COMMAND_LINE)
REQUEST = Origin(OriginKind.REQUEST)


def read_origins(stored: Mapping[str, Any]) -> dict[str, Origin]:
    """Dotted key -> origin, from how a run stores it."""
    return {key: Origin.read(value) for key, value in stored.items()}
