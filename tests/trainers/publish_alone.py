"""Load a model and publish it at once, spread over the ranks in some way, and say how much memory each asked for."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.trainers.spread_steps import FreshRun
from tests.trainers.support import rl_config
from trainers import wire
from trainers.client import ControlPlane
from trainers.distributed import spread
from trainers.distributed.mesh import make_world
from trainers.learner import Learner
from trainers.run_config import RunConfig


class Silent(FreshRun):
    """A run without a control plane that never ends."""

    def send(self, request: Callable[[ControlPlane], object]) -> None:
        """Say nothing."""

    def is_over(self) -> bool:
        return False


class Largest(TorchDispatchMode):
    """The largest memory that any operation of the block asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        known = {each.untyped_storage().data_ptr() for each in _plain((args, kwargs))}
        made = [each.untyped_storage() for each in _plain(result)]
        self.bytes = max([self.bytes, *(each.nbytes() for each in made if each.data_ptr() not in known)])
        return result


def _plain(tree: Any) -> list[torch.Tensor]:
    """Tensors that have memory of their own."""
    tensors = [leaf for leaf in tree_leaves(tree) if type(leaf) in (torch.Tensor, torch.nn.Parameter)]
    return [tensor for tensor in tensors if not tensor.is_meta]


def publish_alone(model: str, into: str, options: dict[str, Any], piece: int) -> dict[str, int]:
    """Publish version 0 below `into`, at most `piece` elements at once; returns what this rank needed at once."""
    spread.PIECE = piece
    config = RunConfig.model_validate(rl_config(Path(model), **options))
    registration = wire.TrainerRegistration(run="r", epoch=1, config={}, run_dir=into, checkpoints=[])
    world = make_world(config.trainer)
    with Largest() as loading:
        learner = Learner(config, registration, Silent(), world)
    with Largest() as publishing:
        learner.publish()
    return {"loading_bytes": loading.bytes, "publishing_bytes": publishing.bytes}
