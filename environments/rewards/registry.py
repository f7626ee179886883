"""Rewards by name: functions with parameters, weighed and added up.

    rewards = [{ name = "exact" }, { name = "tagged", weight = 0.2, args = { tag = "answer" } }]

A reward is a function of a problem and a finished rollout, or a coroutine function for what takes time; its
keyword-only parameters are what `args` may say. It gives a number, as a rule from 0 to 1, and raises plain Python
errors. Other packages add theirs with an entry point in the group `rollyard.rewards`, as `name = "module:function"`.
"""

import inspect
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec
from msgspec import Meta

from environments.errors import InvalidArguments, RegistryError
from environments.types import FinishedRollout, JsonObject, Problem

ENTRY_POINT_GROUP = "rollyard.rewards"

Reward = Callable[..., float | Awaitable[float]]
RewardT = TypeVar("RewardT", bound=Callable[..., Any])
_CHECK = "check_parameters"
"""Attribute of a reward that says more of its parameters than their types can."""
_BUILT_IN: dict[str, str] = {
    "choice": "environments.rewards.choice:choice",
    "exact": "environments.rewards.text:exact",
    "fuzzy": "environments.rewards.text:fuzzy",
    "json_schema": "environments.rewards.structured:json_schema",
    "judge": "environments.rewards.judge:judge",
    "length": "environments.rewards.length:length",
    "matches": "environments.rewards.text:matches",
    "math": "environments.rewards.math_answer:math",
    "repetition": "environments.rewards.length:repetition",
    "tagged": "environments.rewards.text:tagged",
    "tool_calls": "environments.rewards.tools:tool_calls",
    "unit_tests": "environments.rewards.unit_tests:unit_tests",
}


class RewardPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the rewards that an environment adds up."""

    name: Annotated[str, Meta(description="Which reward.")]
    weight: Annotated[float, Meta(description="What it is multiplied with; may be negative.")] = 1.0
    args: Annotated[JsonObject, Meta(description="Its parameters.")] = {}
    label: Annotated[str, Meta(description="Its name in the metrics, where two have the same.")] = ""


class _Weighed(msgspec.Struct, frozen=True):
    label: str
    weight: float
    reward: Reward
    parameters: dict[str, Any]


class Rewards:
    """Parts of a reward, ready to score."""

    def __init__(self, parts: Sequence[RewardPart]) -> None:
        """Raises RegistryError, which names the part and the parameter."""
        self._parts = [_Weighed(_label(part), part.weight, *_bound(part)) for part in parts]
        if doubled := _doubled(parts):
            raise InvalidArguments(doubled)

    async def score(self, problem: Problem, rollout: FinishedRollout) -> float:
        """The weighted sum; every part is in `rollout.metrics` as `reward/LABEL`, not weighed."""
        weighed = []
        for part in self._parts:
            found = part.reward(problem, rollout, **part.parameters)
            value = float(await found if inspect.isawaitable(found) else found)
            rollout.metrics[f"reward/{part.label}"] = value
            weighed.append(part.weight * value)
        # Rounded once: weights that add up to 1 give a perfect reply 1, which thresholds compare with exactly.
        return math.fsum(weighed)


def checked_by(check: Callable[..., None]) -> Callable[[RewardT], RewardT]:
    """Let `check` see the parameters of a reward, by name, wherever a config gives them; it raises ValueError."""

    def marked(reward: RewardT) -> RewardT:
        setattr(reward, _CHECK, check)
        return reward

    return marked


def faults(parts: Sequence[RewardPart], *, are_all_known: bool = True) -> Iterator[tuple[str, str]]:
    """What is wrong with rewards that a config names: the key, below theirs, and a sentence.

    Imports ours alone. `are_all_known=False`: another Python plays them, which may have rewards of its own.
    """
    found = False
    for number, part in enumerate(parts):
        if is_built_in(part.name):
            try:
                _bound(part)
            except RegistryError as error:
                found = True
                yield f"{number}.args", str(error)
        elif are_all_known and part.name not in places():
            found = True
            yield f"{number}.name", _unknown(part.name)
    if not found and (doubled := _doubled(parts)):
        yield "", doubled


@cache
def places() -> dict[str, str]:
    """Name -> `module:function`. A built-in name cannot be taken over by an installed package."""
    return {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)} | _BUILT_IN


def is_built_in(name: str) -> bool:
    """Whether it is one of ours, and not somebody else's code."""
    return name in _BUILT_IN


def find(name: str) -> Reward:
    """Import a reward. Raises RegistryError."""
    place = places().get(name)
    if place is None:
        raise RegistryError(_unknown(name))
    module, _, attribute = place.partition(":")
    try:
        found: Reward = getattr(import_module(module), attribute)
    except Exception as exc:  # the module is anybody's code, and runs here for the first time
        raise RegistryError(f"Reward {name!r} cannot be loaded from {place}: {exc}") from exc
    return found


def parameters_of(reward: Reward) -> type[msgspec.Struct]:
    """A structure of the parameters that `args` may name, with their defaults and descriptions."""
    hints = get_type_hints(reward, include_extras=True)
    fields: list[Any] = [
        (name, hints[name]) if parameter.default is parameter.empty else (name, hints[name], parameter.default)
        for name, parameter in inspect.signature(reward).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]
    return msgspec.defstruct("Parameters", fields, kw_only=True, forbid_unknown_fields=True)


def _bound(part: RewardPart) -> tuple[Reward, dict[str, Any]]:
    reward = find(part.name)
    try:
        parameters = msgspec.structs.asdict(msgspec.convert(part.args, parameters_of(reward)))
        if check := getattr(reward, _CHECK, None):
            check(**parameters)
    except (msgspec.ValidationError, ValueError) as exc:
        raise InvalidArguments(f"Reward {part.name!r}: {str(exc).rstrip('.')}.") from exc
    return reward, parameters


def _label(part: RewardPart) -> str:
    return part.label or part.name


def _doubled(parts: Sequence[RewardPart]) -> str:
    """What is wrong with their labels; empty: nothing."""
    labels = [_label(part) for part in parts]
    doubled = sorted({label for label in labels if labels.count(label) > 1})
    return f"Several rewards are called {', '.join(doubled)}: give each a label." if doubled else ""


def _unknown(name: str) -> str:
    return f"No reward is named {name!r}. Known: {', '.join(sorted(places()))}."
