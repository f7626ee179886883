"""Environments whose problems are made up by a seed: arguments and counts that all of them have."""

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from environments.env import Environment
from environments.types import Split

_LOWEST, _HIGHEST = "min_", "max_"


class RangedArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of which `min_x` is at most `max_x`, wherever there are both."""

    def __post_init__(self) -> None:
        for low in self.__struct_fields__:
            high = _HIGHEST + low.removeprefix(_LOWEST)
            if low.startswith(_LOWEST) and high in self.__struct_fields__ and getattr(self, low) > getattr(self, high):
                raise ValueError(f"{low} {getattr(self, low)} is above {high} {getattr(self, high)}")


class MadeUpArgs(RangedArgs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of every such environment; its own come beside them."""

    train_count: Annotated[int, Meta(ge=1, description="Problems to train on.")] = 10_000
    eval_count: Annotated[int, Meta(ge=1, description="Held-out problems.")] = 256
    seed: Annotated[int, Meta(description="Seed of the problems.")] = 0


ArgsT = TypeVar("ArgsT", bound=MadeUpArgs)


class MadeUp(Environment[ArgsT]):
    """Has as many problems as its arguments ask for."""

    def count(self, split: Split) -> int:
        return self.args.train_count if split is Split.TRAIN else self.args.eval_count
