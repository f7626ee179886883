"""A run's config as rows: key, value, where the value came from."""

import json
from dataclasses import dataclass
from typing import Any

from rollouts.models import Run
from trainers.config import RunConfig
from trainers.origins import Source, describe, source_of

TOP = "run"


@dataclass(frozen=True)
class Row:
    """One leaf of the config."""

    key: str
    value: str
    origin: str
    """In words."""
    is_chosen: bool
    """Whether somebody set it, rather than nobody."""


def sections(run: Run) -> list[tuple[str, list[Row]]]:
    """Rows by section, in the order of the config; single values of the top come first."""
    grouped: dict[str, list[Row]] = {TOP: []}
    for key, value in leaves(_in_order(run.config)):
        section = key.split(".")[0] if "." in key else TOP
        code = run.config_origins.get(key, Source.DEFAULT)
        row = Row(key, _text(value), describe(code), is_chosen=source_of(code) != Source.DEFAULT)
        grouped.setdefault(section, []).append(row)
    return [(name, rows) for name, rows in grouped.items() if rows]


def _in_order(config: dict[str, Any]) -> dict[str, Any]:
    """The sections in the order of the config tree: the database does not keep it."""
    order = {name: at for at, name in enumerate(RunConfig.model_fields)}
    return dict(sorted(config.items(), key=lambda item: order.get(item[0], len(order))))


def leaves(value: Any, at: str = "") -> list[tuple[str, Any]]:
    """Dotted key and value of everything that is not a table or a list of tables."""
    if isinstance(value, dict) and value:
        return [leaf for name, child in value.items() for leaf in leaves(child, f"{at}.{name}" if at else str(name))]
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return [leaf for index, child in enumerate(value) for leaf in leaves(child, f"{at}.{index}")]
    return [(at, value)]


def _text(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value)
