"""Muon (kellerjordan.github.io/posts/muon): the update of a hidden matrix is its momentum, made orthogonal.

    buffer <- momentum x buffer + (1 - momentum) x gradient
    update  = orthogonalise((1 - momentum) x gradient + momentum x buffer)        Nesterov
    weight <- weight (1 - lr x decay) - lr x 0.2 x sqrt(max(rows, columns)) x update

The last factor gives the update the root mean square of AdamW's (arXiv:2502.16982), so one learning rate and one decay
fit both. Orthogonal is a property of the whole matrix and not of a shard: each matrix is gathered, orthogonalised on
every rank, and each rank applies its own shard. Everything that is no hidden matrix (embeddings, output layer, norms,
biases) is AdamW's, and so are the experts of a mixture: transformers keeps those of a layer in one tensor of three
dimensions, in which gate and up projection are not apart.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic iteration: they drive every singular value into about 0.7..1.2 in five steps."""
_STEPS = 5
_RMS_OF_ADAMW = 0.2


class Muon(torch.optim.Optimizer):
    """Muon for `matrices` beside an AdamW for the others: one state and one list of groups over both."""

    def __init__(
        self,
        matrices: Iterable[torch.nn.Parameter],
        others: torch.optim.AdamW | None,
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
    ) -> None:
        super().__init__(list(matrices), {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self._adamw = others
        if others is not None:
            others.state = self.state
            self.param_groups += others.param_groups

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one step with the gradients that are there."""
        group = self.param_groups[0]
        for parameter in group["params"]:
            if parameter.grad is not None:
                self._step_matrix(parameter, parameter.grad, group["lr"], group["momentum"], group["weight_decay"])
        if self._adamw is not None:
            self._adamw.step()

    def _step_matrix(
        self, parameter: torch.Tensor, gradient: torch.Tensor, lr: float, momentum: float, weight_decay: float
    ) -> None:
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        buffer = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
        update = _orthogonal_like(gradient.lerp(buffer, momentum))
        parameter.mul_(1 - lr * weight_decay)
        parameter.add_(update, alpha=-lr * _RMS_OF_ADAMW * max(parameter.shape) ** 0.5)


def orthogonalise(matrix: torch.Tensor) -> torch.Tensor:
    """About U V^T of the singular value decomposition U S V^T, by Newton-Schulz; in bfloat16 on a GPU."""
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix  # the iteration squares the smaller side
    x = wide.bfloat16() if matrix.is_cuda else wide.float()
    x = x / (x.norm() + 1e-7)
    a, b, c = _NEWTON_SCHULZ
    for _ in range(_STEPS):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return (x.T if wide is not matrix else x).to(matrix.dtype)


def _orthogonal_like(update: torch.Tensor) -> torch.Tensor:
    """The orthogonalised whole of a matrix that may be sharded, sharded as it was."""
    if not isinstance(update, DTensor):
        return orthogonalise(update)
    whole = orthogonalise(update.full_tensor())
    sharded = distribute_tensor(whole, update.device_mesh, update.placements, src_data_rank=None)
    return sharded.to(update.device)  # which is not the mesh's when shards are kept in main memory
