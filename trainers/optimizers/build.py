"""Optimizers, learning-rate schedules and gradient clipping, for sharded parameters."""

import logging
import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from trainers.errors import Diverged, ModelUnsupported
from trainers.optimizers.muon import Muon
from trainers.run_config import OptimizerConfig

_log = logging.getLogger(__name__)


def build_optimizer(model: torch.nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Make the optimizer of the config, over every parameter that is trained. Raises ModelUnsupported."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if config.kind == "sgd":
        return torch.optim.SGD(_decay_groups(parameters, config), lr=config.lr, momentum=config.momentum)
    if config.kind == "adamw":
        return _adamw(parameters, config)
    hidden = _hidden_matrices(model)
    matrices = [parameter for parameter in parameters if id(parameter) in hidden]
    others = [parameter for parameter in parameters if id(parameter) not in hidden]
    if not matrices:
        raise ModelUnsupported(
            f"optimizer.kind=muon needs linear layers, and {type(model).__name__} has none: set optimizer.kind to adamw"
        )
    _log.info(
        "muon has %d parameters, AdamW the other %d", *(sum(p.numel() for p in own) for own in (matrices, others))
    )
    return Muon(
        matrices,
        _adamw(others, config) if others else None,
        lr=config.lr,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
    )


def learning_rate(config: OptimizerConfig, step: int, max_steps: int) -> float:
    """Rate of the 0-based `step`: linear warm-up, then constant, then the decay that would end at `max_steps`."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    decay_steps = max_steps - config.warmup_steps if config.decay_steps is None else config.decay_steps
    if config.schedule == "constant" or max_steps - step >= decay_steps:
        return config.lr
    left = (max_steps - step) / decay_steps
    if config.schedule == "cosine":
        left = (1 - math.cos(math.pi * left)) / 2
    return config.lr * (config.lr_floor + (1 - config.lr_floor) * left)


def optimizer_step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    lr: float,
    max_grad_norm: float,
    stages: dist.ProcessGroup | None = None,
    counted_elsewhere: torch.nn.Parameter | None = None,
) -> float:
    """Clip the gradient, step and clear it; returns the norm before clipping. Collective.

    The norm is that of all `stages` of a pipeline; `counted_elsewhere` is a parameter that two of them have. Raises
    Diverged on a gradient that is not finite, before it can reach the weights.
    """
    gradients = {parameter: parameter.grad for parameter in model.parameters() if parameter.grad is not None}
    norm = _norm([gradient for parameter, gradient in gradients.items() if parameter is not counted_elsewhere], stages)
    if not math.isfinite(norm):
        raise Diverged(f"the gradient norm is {norm}: lower optimizer.lr, or look at the rewards of this batch")
    if norm > max_grad_norm:
        torch._foreach_mul_([_local(gradient) for gradient in gradients.values()], max_grad_norm / norm)
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm


def _adamw(parameters: Sequence[torch.nn.Parameter], config: OptimizerConfig) -> torch.optim.AdamW:
    groups = _decay_groups(parameters, config)
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def _decay_groups(parameters: Sequence[torch.nn.Parameter], config: OptimizerConfig) -> list[dict[str, object]]:
    """Decay matrices only: decaying norms and biases pulls the model towards zero output, not towards simplicity."""
    groups: list[dict[str, object]] = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _hidden_matrices(model: torch.nn.Module) -> set[int]:
    """Ids of the matrices that map hidden states to hidden states: the linear layers, without the output layer.

    Rows of an embedding and of the output layer belong to single tokens; orthogonality has no meaning among them.
    """
    output = getattr(model, "get_output_embeddings", lambda: None)()
    linear = [module for module in model.modules() if isinstance(module, torch.nn.Linear) and module is not output]
    of_tokens = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    return {id(module.weight) for module in linear} - of_tokens


def _norm(gradients: Sequence[torch.Tensor], stages: dist.ProcessGroup | None) -> float:
    """Norm of all gradients together. They may be sharded over different meshes: each part is summed over its own, then
    all over the stages of a pipeline.

    Collective: the ranks hold the same parameters in the same order, so they meet in the same reductions.
    """
    parts: dict[tuple[DeviceMesh | None, tuple[int, ...]], list[torch.Tensor]] = {}
    for gradient in gradients:
        key: tuple[DeviceMesh | None, tuple[int, ...]] = (None, ())
        if isinstance(gradient, DTensor):
            sharded = (dim for dim, placement in enumerate(gradient.placements) if not placement.is_replicate())
            key = (gradient.device_mesh, tuple(sharded))
        parts.setdefault(key, []).append(_local(gradient))
    total = 0.0
    for (mesh, sharded_dims), tensors in parts.items():
        square = torch.stack(torch._foreach_norm(tensors)).float().square().sum()
        for dim in sharded_dims:
            assert mesh is not None
            dist.all_reduce(square, group=mesh.get_group(dim))
        total += float(square)
    if stages is not None and stages.size() > 1:
        square = torch.tensor(total, dtype=torch.float64, device=gradients[0].device)
        dist.all_reduce(square, group=stages)
        total = float(square)
    return math.sqrt(total) if math.isfinite(total) else total


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
