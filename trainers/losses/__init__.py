"""Losses by the `type` of their config."""

import functools
import importlib
from collections.abc import Callable
from typing import Any

from trainers.errors import DataError
from trainers.losses.aipo import aipo_loss
from trainers.losses.base import Loss, LossInputs, LossOutput
from trainers.losses.cispo import cispo_loss
from trainers.losses.cross_entropy import cross_entropy_loss
from trainers.losses.distill import distill_loss
from trainers.losses.dppo import dppo_loss
from trainers.losses.grpo import grpo_loss
from trainers.losses.gspo import gspo_loss, gspo_token_loss
from trainers.losses.masked_is import masked_is_loss
from trainers.losses.opo import opo_loss
from trainers.losses.rloo import rloo_loss
from trainers.losses.sapo import sapo_loss
from trainers.run_config import CustomLoss, LossConfig

_LOSSES: dict[str, Callable[[LossInputs, Any], LossOutput]] = {
    "aipo": aipo_loss,
    "cispo": cispo_loss,
    "cross_entropy": lambda inputs, _config: cross_entropy_loss(inputs),
    "dapo": grpo_loss,
    "distill": distill_loss,
    "dppo": dppo_loss,
    "dr_grpo": grpo_loss,
    "grpo": grpo_loss,
    "gspo": gspo_loss,
    "gspo_token": gspo_token_loss,
    "masked_is": masked_is_loss,
    "opo": opo_loss,
    "rloo": rloo_loss,
    "sapo": sapo_loss,
}


def make_loss(config: LossConfig) -> Loss:
    """The loss of a config, ready to be called. Raises DataError when a custom one cannot be imported."""
    if isinstance(config, CustomLoss):
        return functools.partial(_import(config.path), **config.args)
    loss = _LOSSES[config.type]
    return lambda inputs: loss(inputs, config)


def _import(path: str) -> Callable[..., LossOutput]:
    module, _, name = path.rpartition(".")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise DataError(f"algorithm.loss.path: cannot import {path}: {error}") from error
    if not callable(function):
        raise DataError(f"algorithm.loss.path: {path} is no function")
    return function  # type: ignore[no-any-return]
