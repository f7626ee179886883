"""A run's config as rows: key, value, where the value came from."""

import json
from dataclasses import dataclass
from typing import Any

from rollouts.models import Run
from trainers.config import RunConfig, leaves
from trainers.origins import DEFAULT, Origin, OriginKind

TOP = "run"


@dataclass(frozen=True)
class ConfigRow:
    """One leaf of the config."""

    key: str
    value: str
    origin: Origin

    @property
    def is_chosen(self) -> bool:
        """Whether somebody set it, rather than nobody."""
        return self.origin.kind is not OriginKind.DEFAULT


def sections(run: Run) -> list[tuple[str, list[ConfigRow]]]:
    """Rows by section, in the order of the config; single values of the top come first."""
    origins = run.origins
    grouped: dict[str, list[ConfigRow]] = {TOP: []}
    for key, value in leaves(_in_order(run.config)):
        section = key.split(".")[0] if "." in key else TOP
        origin = origins.get(key, DEFAULT)
        grouped.setdefault(section, []).append(ConfigRow(key, _text(value), origin))
    return [(name, rows) for name, rows in grouped.items() if rows]


def _in_order(config: dict[str, Any]) -> dict[str, Any]:
    """The sections in the order of the config tree: the database does not keep it."""
    order = {name: at for at, name in enumerate(RunConfig.model_fields)}
    return dict(sorted(config.items(), key=lambda item: order.get(item[0], len(order))))


def _text(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value)
