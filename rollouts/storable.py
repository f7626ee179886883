"""What the store can hold: sizes, finite numbers, and text that Postgres takes."""

import re
import uuid
from collections.abc import Iterator
from types import NoneType
from typing import Any

from environments.visible import HIDDEN
from rollouts.errors import Invalid
from trainers.config import RunConfig

FINITE = 3.4e38
"""What fits 32 bits, roughly. NaN and infinities fall outside of it: Postgres orders NaN above every number."""
MAX_GROUP_SIZE = 1024
MAX_SEAT = 40
MAX_TEXT = 200
MAX_KEY = 64
MAX_ENVIRONMENT = 100
MAX_ENVIRONMENT_VERSION = 100
MAX_METRIC_KEY = 100
MAX_WEIGHT = 1e9
MAX_INT = 2**31 - 1
MAX_DEPTH = 32
DAY_S = 86_400
UNSTORABLE = "holds a NUL or a lone surrogate, which the database cannot store"
UNNAMABLE = "holds a character that nobody sees, or one that turns the direction of text: no name may"
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_UNNAMABLE = re.compile(rf"[\t\n]|{HIDDEN.pattern}")
_KEYS = (str, bytes, int, float)
_VALUES = (*_KEYS, NoneType)
"""Besides lists and objects, of what comes as MessagePack what JSON has a form for."""


def check_fits(config: RunConfig) -> None:
    """Raise Invalid naming every value of a run config that the store cannot hold."""
    limits = {
        "max_steps": (config.max_steps, MAX_INT),
        "batch.batch_size": (config.batch.batch_size, MAX_INT),
        "batch.token_batch_size": (config.batch.token_batch_size or 1, MAX_INT),
        "workers.lease_s": (config.workers.lease_s, DAY_S),
    }
    if config.evaluation is not None:
        limits["evaluation.problems"] = (config.evaluation.problems, MAX_INT)
        most = max((len(ref.own_seats) for ref in config.environments), default=1)
        limits["evaluation.rollouts_per_problem"] = (config.evaluation.rollouts_per_problem * most, MAX_GROUP_SIZE)
        limits["evaluation.deadline_s"] = (config.evaluation.deadline_s, 30 * DAY_S)
    fields = {name: f"must be at most {limit}" for name, (value, limit) in limits.items() if value > limit}
    sizes = config.group_rollouts
    for index, environment in enumerate(config.environments):
        if len(environment.name) > MAX_ENVIRONMENT:
            fields[f"environments.{index}.name"] = f"must have at most {MAX_ENVIRONMENT} characters"
        if not is_name(environment.name):
            fields[f"environments.{index}.name"] = UNNAMABLE
        for seat in environment.seats:
            if not 0 < len(seat) <= MAX_SEAT or not is_name(seat):
                fields[f"environments.{index}.seats"] = f"a seat must have 1 to {MAX_SEAT} characters that can be seen"
        if sizes[environment.run_name] > MAX_GROUP_SIZE:
            at = "sampling" if environment.group_size is None else f"environments.{index}"
            fields[f"{at}.group_size"] = f"must be at most {MAX_GROUP_SIZE}"
        weights = {"weight": environment.weight}
        weights |= {f"schedule.{at}.weight": point.weight for at, point in enumerate(environment.schedule)}
        for key, weight in weights.items():
            if weight >= MAX_WEIGHT:
                fields[f"environments.{index}.{key}"] = f"must be less than {MAX_WEIGHT:.0f}"
    fields |= dict(data_faults(config.model_dump(mode="json")))
    if fields:
        raise Invalid(f"The run config does not fit: {', '.join(fields)}.", fields=fields)


def data_faults(value: Any, at: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """(dotted path, what is wrong there) of data that Postgres, JSON or a reader that recurses could not take."""
    if depth > MAX_DEPTH:
        yield at, f"is nested more than {MAX_DEPTH} deep"
    elif isinstance(value, str):
        if not is_storable(value):
            yield at, UNSTORABLE
    elif isinstance(value, dict):
        for key, item in value.items():
            path = f"{at}.{displayable(str(key))}".lstrip(".")
            if not is_storable(str(key)):
                yield path, UNSTORABLE
            if not isinstance(key, _KEYS) or isinstance(key, bool):
                yield path, "is named by what is no text"
            yield from data_faults(item, path, depth + 1)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from data_faults(item, f"{at}.{index}".lstrip("."), depth + 1)
    elif not isinstance(value, _VALUES):
        yield at, "is nothing that JSON holds"


def is_storable(text: str) -> bool:
    """Whether Postgres can hold the text: it knows neither NUL nor lone surrogates."""
    return _UNSTORABLE.search(text) is None


def displayable(text: str) -> str:
    """Text that Postgres can hold, for text that is derived from tokens: NULs and lone surrogates become U+FFFD."""
    return _UNSTORABLE.sub("\ufffd", text)


def displayable_values(values: dict[str, Any]) -> dict[str, Any]:
    """An object all of whose text Postgres can hold; absent values are left out."""
    return {name: _displayable_value(value) for name, value in values.items() if value is not None}


def _displayable_value(value: Any) -> Any:
    if isinstance(value, str):
        return displayable(value)
    if isinstance(value, list):
        return [_displayable_value(each) for each in value]
    if isinstance(value, dict):
        return displayable_values(value)
    return value


def is_name(text: str) -> bool:
    """Whether it may name something: what people read in a line, and pick things by, holds nothing that hides."""
    return _UNNAMABLE.search(text) is None


def named(text: str) -> str:
    """A name for what has to have one, whatever it calls itself: what no name may hold becomes U+FFFD."""
    return _UNNAMABLE.sub("\ufffd", text)


def is_uuid(text: str) -> bool:
    """Whether a token could be one of ours; anything else need not be looked up."""
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
