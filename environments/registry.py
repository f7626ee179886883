"""Environments by name. Nothing is imported before it is asked for, so an environment may need heavy packages.

Other packages add theirs with an entry point in the group `rollyard.environments`, as `name = "module:Class"`.
"""

from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import msgspec

from environments.env import Environment
from environments.errors import InvalidArguments, RegistryError, UnknownEnvironment

ENTRY_POINT_GROUP = "rollyard.environments"

_BUILT_IN = {
    "calculator": "environments.library.calculator:Calculator",
    "reverse_text": "environments.library.reverse_text:ReverseText",
}


@cache
def places() -> dict[str, str]:
    """Name -> `module:Class`. A built-in name cannot be taken over by an installed package."""
    installed = {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}
    return installed | _BUILT_IN


def is_built_in(name: str) -> bool:
    """Whether it is one of ours, and not somebody else's code."""
    return name in _BUILT_IN


def names() -> list[str]:
    """Return every known name, sorted."""
    return sorted(places())


def find_class(name: str) -> type[Environment[Any]]:
    """Import an environment's class. Raises `RegistryError`."""
    place = places().get(name)
    if place is None:
        raise UnknownEnvironment(f"No environment is named {name!r}. Known: {', '.join(names())}.")
    module, _, attribute = place.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except Exception as exc:  # the module is anybody's code, and runs here for the first time
        raise RegistryError(f"Environment {name!r} cannot be loaded from {place}: {exc}") from exc
    if not (isinstance(found, type) and issubclass(found, Environment)):
        raise RegistryError(f"Environment {name!r}: {place} is not a subclass of environments.env.Environment.")
    return found


def load(name: str, args: dict[str, Any] | None = None) -> Environment[Any]:
    """Make an environment from the `args` of a run config. Raises `RegistryError`, which names the argument."""
    environment_class = find_class(name)
    try:
        return environment_class(msgspec.convert(args or {}, environment_class.args_type))
    except (msgspec.ValidationError, ValueError) as exc:
        known = ", ".join(field.name for field in msgspec.structs.fields(environment_class.args_type)) or "none"
        raise InvalidArguments(f"Environment {name!r}: {exc}. Arguments it takes: {known}.") from exc
