"""AdamW, its learning-rate schedule and gradient clipping, for sharded parameters."""

import torch
from torch.distributed.tensor import DTensor

from trainers.errors import Diverged
from trainers.run_config import OptimizerConfig


def build_optimizer(model: torch.nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """Decay matrices only: decaying norms and biases pulls the model towards zero output, not towards simplicity."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=config.lr, betas=config.betas, eps=config.eps, fused=True
    )


def learning_rate(config: OptimizerConfig, step: int, max_steps: int) -> float:
    """Rate of the 0-based `step`: linear warm-up, then constant or linearly to zero at `max_steps`."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    if config.schedule == "linear":
        return config.lr * (max_steps - step) / (max_steps - config.warmup_steps)
    return config.lr


def optimizer_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, lr: float, max_grad_norm: float) -> float:
    """Clip the gradient, step and clear it; returns the norm before clipping.

    Raises Diverged on a gradient that is not finite, before it can reach the weights.
    """
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    grad_norm = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
    if grad_norm != grad_norm or grad_norm == float("inf"):
        raise Diverged(f"the gradient norm is {grad_norm}: lower optimizer.lr, or look at the rewards of this batch")
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return grad_norm
