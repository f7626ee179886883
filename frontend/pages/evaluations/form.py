"""The form that launches an evaluation: its values as they were typed, and what the service takes."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from environments.types import Split
from frontend.typed import Readers, numbers
from rollouts.errors import Invalid
from rollouts.services.runs.evaluating import EvaluationIn, environment_of
from rollouts.storable import displayable

_NUMBERS: Readers = {
    "samples": int,
    "problems": int,
    "max_tokens": int,
    "max_turns": int,
    "temperature": float,
    "threshold": float,
}
_TEXTS = ("target", "environments", "split", "name", "project")
_KEYS = {
    "model": "target",
    "sampling.max_tokens": "max_tokens",
    "sampling.max_turns": "max_turns",
    "evaluation.problems": "problems",
    "evaluation.rollouts_per_problem": "samples",
    "evaluation.temperature": "temperature",
    "evaluation.threshold": "threshold",
    "evaluation.split": "split",
    "environments": "environments",
    "name": "name",
}
"""Key of the run's config, or the beginning of some -> field of the form."""


class EvaluationForm:
    """Values of a query or a form, in whatever shape they came."""

    splits = [split.value for split in reversed(Split)]

    def __init__(self, given: Mapping[str, str]) -> None:
        self.errors: dict[str, str] = {}
        """Field -> what is wrong there."""
        self.faults: list[str] = []
        """What is wrong with no field of the form."""
        self.values = {name: displayable(given.get(name, "")).strip() for name in (*_TEXTS, *_NUMBERS)}

    @property
    def project(self) -> str:
        """Its slug."""
        return self.values["project"]

    def asked(self) -> EvaluationIn:
        """What the service takes. Raises Invalid, by field."""
        chosen: dict[str, Any] = {name: self.values[name] for name in ("target", "name")}
        found, fields = numbers(self.values, _NUMBERS)
        chosen |= found
        if not chosen["target"]:
            fields["target"] = "must name what is measured"
        if self.values["split"]:
            chosen["split"] = self.values["split"]
        try:
            lines = filter(None, map(str.strip, self.values["environments"].splitlines()))
            chosen["environments"] = [environment_of(line) for line in lines]
        except ValueError as error:
            fields["environments"] = str(error)
        if fields:
            raise Invalid("Nothing is measured.", fields=fields)
        return msgspec.convert(chosen, EvaluationIn)

    def refuse(self, faults: Iterable[tuple[str, str]]) -> None:
        """Put what is wrong, by key of the run's config, where it was typed."""
        for key, fault in faults:
            field = next((_KEYS[part] for part in _beginnings(key) if part in _KEYS), key)
            if field in self.values:
                self.errors[field] = fault
            else:
                self.faults.append(f"{key} {fault}" if key else fault)


def _beginnings(key: str) -> list[str]:
    """A dotted key, then all that it begins with, the longest first."""
    parts = key.split(".")
    return [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
