"""How the model is spread over the ranks of the mesh, and what is traded for memory.

In this order, because each wraps the one before it: pipeline stages, tensor parallel, activation checkpointing,
compilation, FSDP2.

Layers are split over `tensor`, then sharded over `shard` and `context`. The rest (embedding, last norm, output layer)
is not split; it is sharded over `tensor` too. Its gradients are equal on the ranks of a `tensor` group, and FSDP takes
the mean over the ranks it shards over, so one factor, the number of data-parallel ranks, makes sums of both means.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import save_on_cpu
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from transformers import PreTrainedModel

from trainers.distributed.mesh import World
from trainers.distributed.spread import exact_names
from trainers.errors import ModelUnsupported
from trainers.run_config import TrainerConfig

_log = logging.getLogger(__name__)

SPLITTABLE = ("llama", "mistral", "qwen2", "qwen3")
"""`model_type`s whose parts have the names and the data flow that `_split` and `keep_stage` rely on."""


def shard(model: PreTrainedModel, world: World, dtype: torch.dtype, config: TrainerConfig) -> None:
    """Spread the model over the ranks, in place. A rank's share becomes float32; arithmetic is done in `dtype`.

    Raises ModelUnsupported for a model that cannot be split as the config asks.
    """
    if world.stages > 1:
        keep_stage(model, world)
    on_gpu = world.device.type == "cuda"
    layer_names = set(model._no_split_modules or ())
    layers: list[Any] = [module for module in model.modules() if type(module).__name__ in layer_names]
    if config.tensor_parallel > 1:
        _refuse_to_split(model, config.tensor_parallel)
        for layer in layers:
            _split(layer, world.mesh["tensor"])
    if config.activation_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if config.activation_offload:
        for layer in layers:
            recompute: Any = layer._gradient_checkpointing_func
            layer._gradient_checkpointing_func = functools.partial(_offload, recompute, on_gpu)
    if config.compile:
        for layer in layers:
            layer.compile(dynamic=True)
    precise = MixedPrecisionPolicy()
    policy = precise
    if dtype != torch.float32:
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    offload = CPUOffloadPolicy(pin_memory=on_gpu) if config.cpu_offload else OffloadPolicy()
    for module in _exact_modules(model):
        fully_shard(module, mesh=world.layer_mesh, mp_policy=precise, offload_policy=offload)
    for layer in layers:
        fully_shard(layer, mesh=world.layer_mesh, mp_policy=policy, offload_policy=offload)
        layer.float()
    rest_policy = precise if config.fp32_lm_head else policy
    fully_shard(model, mesh=world.rest_mesh, mp_policy=rest_policy, offload_policy=offload)
    model.float()
    assert isinstance(model, FSDPModule)


def _exact_modules(model: PreTrainedModel) -> list[torch.nn.Module]:
    """The parts of layers whose own parameters are not to be rounded, such as routers; what is in another one first."""
    exact = exact_names(model)
    return [
        module
        for name, module in reversed([*model.named_modules()])
        if any(f"{name}.{own}" in exact for own, _ in module.named_parameters(recurse=False))
    ]


def _offload(recompute: Callable[..., Any], pin_memory: bool, layer: Callable[..., Any], *inputs: Any) -> Any:
    """Checkpoint a layer as `recompute` does, with its inputs in main memory until its backward pass.

    Nothing else moves there: what the layer itself would keep is dropped.
    """
    with save_on_cpu(pin_memory=pin_memory):
        return recompute(layer, *inputs)


class _Elsewhere(torch.nn.Module):
    """Stands where another stage has a module, so that all others keep their names: what comes in goes out."""

    def forward(self, hidden_states: torch.Tensor, **_: Any) -> torch.Tensor:
        return hidden_states


def keep_stage(model: PreTrainedModel, world: World) -> None:
    """Leave of the model what this rank's stage has: equally many layers, one more or less, and an end of the model.

    Where the embedding is the output layer too, both the first and the last stage keep it.
    """
    _refuse_unknown(model, "pipeline")
    base: Any = model.base_model  # whose parts are, to a type checker, tensors or modules
    head = model.get_output_embeddings()
    count = len(base.layers)
    if count < world.stages:
        raise ModelUnsupported(f"{count} layers cannot fill {world.stages} stages: lower trainer.pipeline_parallel")
    begin, end = (count * stage // world.stages for stage in (world.stage, world.stage + 1))
    for index in {*range(count)} - {*range(begin, end)}:
        base.layers[index] = _Elsewhere()
    tied = head.weight is base.embed_tokens.weight
    if world.stage > 0 and not (tied and world.is_last_stage):
        base.embed_tokens = _Elsewhere()
    if not world.is_last_stage:
        base.norm = _Elsewhere()
        if not (tied and world.stage == 0):
            model.set_output_embeddings(_Elsewhere())
    _log.warning("pipeline parallelism is experimental; stage %d has layers %d to %d", world.stage, begin, end - 1)


def _refuse_unknown(model: PreTrainedModel, kind: str) -> None:
    if (found := model.config.model_type) not in SPLITTABLE:
        known = ", ".join(SPLITTABLE)
        raise ModelUnsupported(f"{kind} parallelism knows {known} and not {found}: set trainer.{kind}_parallel to 1")


def _refuse_to_split(model: PreTrainedModel, ways: int) -> None:
    config = model.config
    _refuse_unknown(model, "tensor")
    for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        if getattr(config, name) % ways:
            raise ModelUnsupported(
                f"{name} {getattr(config, name)} cannot be split {ways} ways: set trainer.tensor_parallel to a divisor"
            )


def _split(layer: torch.nn.Module, mesh: DeviceMesh) -> None:
    """Split heads and the wide side of the MLP. Everything between the blocks stays whole on every rank.

    Inputs of a block enter as replicated DTensors, so that their gradient is summed over the ranks once per block.
    """
    into, out_of = ColwiseParallel(), RowwiseParallel()
    plan: dict[str, ParallelStyle] = {
        "self_attn": PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": Replicate()},
            desired_input_kwarg_layouts={"hidden_states": Replicate()},
        ),
        **{f"self_attn.{name}": into for name in ("q_proj", "k_proj", "v_proj")},
        "self_attn.o_proj": out_of,
        "mlp": PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),)),
        **{f"mlp.{name}": into for name in ("gate_proj", "up_proj")},
        "mlp.down_proj": out_of,
    }
    per_head = SequenceParallel(sequence_dim=2, use_local_output=True)  # of [1, N, H, E]: each rank norms its own heads
    plan |= {f"self_attn.{name}": per_head for name in ("q_norm", "k_norm") if hasattr(layer.self_attn, name)}
    parallelize_module(layer, mesh, plan, src_data_rank=None)
