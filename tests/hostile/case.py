"""A case of the corpus: a good group with changes, and who takes it nevertheless."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.hostile.wires import ITEM, Data, Wire, written

NATIVE = frozenset({Wire.JSON, Wire.MESSAGEPACK, Wire.PACKED})
ATROPOS = frozenset({Wire.ATROPOS})
COLUMNS = frozenset({Wire.PACKED, Wire.ATROPOS})
"""The wires that have per-token advantages and reference logprobs."""
EVERYWHERE = NATIVE | ATROPOS
NOWHERE: frozenset[Wire] = frozenset()

MISSING = object()
"""In place of a value: there is none."""
Changes = tuple[tuple[str, Data], ...]
"""(dotted path, value) each; `*` is every rollout, the empty path the whole body."""


@dataclass(frozen=True)
class Later:
    """A value that is made when it is sent: it is large."""

    make: Callable[[], Data]


@dataclass(frozen=True)
class Case:
    """Variants that fare alike, by name. Each wire that can say one sends it, and refuses it or takes it."""

    kind: str
    name: str
    variants: dict[str, Changes]
    taken: frozenset[Wire] = NOWHERE
    is_large: bool = False
    """Takes seconds."""

    def __str__(self) -> str:
        return f"{self.kind}-{self.name}".replace(" ", "-")

    def groups(self) -> dict[str, Data]:
        """The variants as plain data."""
        return {name: _with(good(), changes) for name, changes in self.variants.items()}

    def bodies(self, wire: Wire) -> dict[str, bytes]:
        """What the wire sends: a body per variant that it can say, and that differs from a good group's."""
        bodies = {name: written(wire, group) for name, group in self.groups().items()}
        return {name: body for name, body in bodies.items() if body is not None and body != written(wire, good())}


def refused(kind: str, path: str, values: dict[str, Data], *, but: frozenset[Wire] = NOWHERE) -> Case:
    """Values at one place, which every wire refuses, or all but some."""
    return Case(
        kind, f"{_place(path)} {_names(values)}", {name: ((path, value),) for name, value in values.items()}, but
    )


def taken(kind: str, path: str, values: dict[str, Data], by: frozenset[Wire]) -> Case:
    """Values at one place, which these wires take, all of them in one list, and the others refuse."""
    return refused(kind, path, values, but=by)


def _names(values: dict[str, Data]) -> str:
    first = next(iter(values))
    return first if len(values) == 1 else f"{first} and {len(values) - 1} more"


def good(*, rewards: tuple[float, ...] = (1.0, 0.0)) -> dict[str, Any]:
    """A group that every wire takes."""
    return {
        "environment": "reverse_text",
        "problem_key": "cat",
        "rollouts": [
            {
                "token_ids": [65, 66, 67, 68],
                "loss_mask": [0, 0, 1, 1],
                "inference_logprobs": [0.0, 0.0, -0.5, -0.25],
                "reward": reward,
                "messages": [{"role": "user", "content": "cat"}, {"role": "assistant", "content": "tac"}],
            }
            for reward in rewards
        ],
    }


def tokens(count: int, mask: int = 1) -> Changes:
    """The first rollout has so many tokens."""
    columns = {"token_ids": 7, "loss_mask": mask, "inference_logprobs": -0.5 * mask}
    return tuple((f"rollouts.0.{name}", Later(partial(_times, value, count))) for name, value in columns.items())


def _times(value: Data, count: int) -> Data:
    return [value] * count


def _place(path: str) -> str:
    names = [step for step in path.split(".") if step and not step.isdigit() and step not in {"*", ITEM}]
    return names[-1] if names else "body"


def _with(group: Data, changes: Changes) -> Data:
    for path, value in changes:
        made = value.make() if isinstance(value, Later) else value
        group = _changed(group, path.split(".") if path else [], made)
    return group


def _changed(data: Data, path: list[str], value: Data) -> Data:
    if not path:
        return value
    step, rest = path[0], path[1:]
    if step == "*":
        return [_changed(each, rest, value) for each in data]
    if isinstance(data, list):
        index = int(step)
        return [_changed(each, rest, value) if at == index else each for at, each in enumerate(data)]
    if value is MISSING and not rest:
        return {name: each for name, each in data.items() if name != step}
    return data | {step: _changed(data.get(step, {}), rest, value)}
