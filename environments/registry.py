"""Environments by name. Nothing is imported before it is asked for, so an environment may need heavy packages.

Other packages add theirs with an entry point in the group `rollyard.environments`, as `name = "module:Class"`.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import msgspec

from environments.env import Environment
from environments.errors import InvalidArguments, RegistryError, UnknownEnvironment
from environments.rewards import registry as rewards
from environments.venvs import ENTRY_POINT_GROUP

_NAMING = ("id", "path", "game", "app", "base_url")
"""Arguments of bridges that say what is played, the first that is there."""
_BUILT_IN = {
    "alphabet_sort": "environments.library.alphabet_sort:AlphabetSort",
    "blackjack": "environments.library.blackjack:Blackjack",
    "calculator": "environments.library.calculator:Calculator",
    "choices": "environments.library.data.choices:Choices",
    "code": "environments.library.code.environment:Code",
    "dataset": "environments.library.data.dataset:AnyDataSet",
    "gsm8k": "environments.library.data.gsm8k:Gsm8k",
    "instructions": "environments.library.instructions.environment:Instructions",
    "judge": "environments.library.judge:JudgeEnvironment",
    "kuhn_poker": "environments.library.kuhn_poker.environment:KuhnPoker",
    "math": "environments.library.data.math:Math",
    "python": "environments.library.python.environment:PythonTool",
    "reverse_text": "environments.library.reverse_text:ReverseText",
    "search": "environments.library.search.environment:Search",
    "sql": "environments.library.sql.environment:Sql",
    "wordle": "environments.library.wordle:Wordle",
}

_SEATS = {"kuhn_poker": ("first", "second")}
"""Of ours, as their classes name them: nothing is imported to read a config."""
_BRIDGES = {
    "atropos": "environments.bridges.atropos:Atropos",
    "gymnasium": "environments.bridges.gymnasium:GymnasiumText",
    "open_spiel": "environments.bridges.open_spiel:OpenSpiel",
    "open_spiel_match": "environments.bridges.open_spiel_match:OpenSpielMatch",
    "openenv": "environments.bridges.openenv:OpenEnv",
    "reasoning_gym": "environments.bridges.reasoning_gym:ReasoningGym",
    "verifiers": "environments.bridges.verifiers:Verifiers",
}
"""Ours as well; what they play is not."""


@cache
def places() -> dict[str, str]:
    """Name -> `module:Class`. A built-in name cannot be taken over by an installed package."""
    installed = {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}
    return installed | _BUILT_IN | _BRIDGES


def is_built_in(name: str) -> bool:
    """Whether it is one of ours, and not somebody else's code."""
    return name in _BUILT_IN


def is_bridge(name: str) -> bool:
    """Whether it plays environments of another library: in a process of its own, with that library's Python."""
    return name in _BRIDGES


def seats_of(name: str) -> tuple[str, ...]:
    """The seats of one of ours; those of others are known where they are played."""
    return _SEATS.get(name, ()) if is_built_in(name) else ()


def data_of(name: str, args: Mapping[str, Any]) -> str:
    """The data set that one of ours reads: a path, or a name of the hub. Empty for none."""
    data = args.get("data")
    return data if is_built_in(name) and isinstance(data, str) else ""


def rewards_from_elsewhere(name: str, args: Mapping[str, Any]) -> list[str]:
    """Names of the rewards of one of our environments that are somebody else's code.

    What others call their arguments is theirs, and what they import is trusted with them.
    """
    parts = args.get("rewards") if is_built_in(name) else None
    named = [part.get("name") for part in parts if isinstance(part, Mapping)] if isinstance(parts, list) else []
    return [name for name in named if isinstance(name, str) and not rewards.is_built_in(name)]


def policies_of(name: str, args: Mapping[str, Any]) -> dict[str, str]:
    """What one of our environments asks beside the policy: the key of its arguments -> the name in [[policies]]."""
    if not is_built_in(name):
        return {}
    asked = {"policy": args.get("policy", "judge")} if name == "judge" else {}
    parts = args.get("rewards")
    for index, part in enumerate(parts if isinstance(parts, list) else []):
        if isinstance(part, Mapping) and part.get("name") == "judge":
            given = part.get("args")
            asked[f"rewards.{index}"] = given.get("policy", "judge") if isinstance(given, Mapping) else "judge"
    return {key: policy for key, policy in asked.items() if isinstance(policy, str)}


def unmeasured(name: str, args: Mapping[str, Any]) -> dict[str, str]:
    """Why an evaluation of one of ours would measure nothing: the key of its arguments -> what follows that key."""
    if name != "judge" or args.get("mode", "pairwise") != "pairwise" or args.get("against", "group") != "group":
        return {}
    reason = "'group' compares replies of one policy with each other, by which an evaluation gives every policy .5"
    return {"against": f"{reason}. Set it to 'answer', or mode to 'rubric'."}


def is_ours_alone(name: str, args: Mapping[str, Any]) -> bool:
    """Whether it may play beside the control plane: one of ours, with nobody else's files or code."""
    return is_built_in(name) and not data_of(name, args) and not rewards_from_elsewhere(name, args)


def code_from_elsewhere(name: str, args: Mapping[str, Any]) -> str | None:
    """What of others an environment runs, as somebody would allow it; None: nothing."""
    if is_bridge(name):
        return f"{name}:{named_by_bridge(name, args)}"
    return None if is_built_in(name) else name


def named_by_bridge(name: str, args: Mapping[str, Any]) -> str:
    """What a bridge plays: a package, a path, an id. Empty for what is no bridge."""
    named = (args[key] for key in _NAMING if isinstance(args.get(key), str))
    return next(named, "") if is_bridge(name) else ""


def names() -> list[str]:
    """Return every known name, sorted."""
    return sorted(places())


def find_class(name: str) -> type[Environment[Any]]:
    """Import an environment's class. Raises `RegistryError`."""
    # A whole place is what a virtual environment of its own has, of which nobody here knows the names.
    place = name if ":" in name else places().get(name)
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


def arguments_of(args_type: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    """Arguments by name: an environment's own before those of its kind."""
    inherited = {name for base in args_type.__bases__ for name in getattr(base, "__struct_fields__", ())}
    fields = msgspec.structs.fields(args_type)
    return {field.encode_name: field for field in sorted(fields, key=lambda field: field.name in inherited)}


def load(name: str, args: dict[str, Any] | None = None) -> Environment[Any]:
    """Make an environment from the `args` of a run config. Raises `RegistryError`, which names the argument."""
    environment_class = find_class(name)
    try:
        return environment_class(msgspec.convert(args or {}, environment_class.args_type))
    except (msgspec.ValidationError, ValueError) as exc:
        known = ", ".join(arguments_of(environment_class.args_type)) or "none"
        raise InvalidArguments(f"Environment {name!r}: {exc}. Arguments it takes: {known}.") from exc
