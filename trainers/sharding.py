"""How the model is spread over the ranks of the mesh, and what is traded for memory.

In this order, because each wraps the one before it: tensor parallel, activation checkpointing, compilation, FSDP2.

Layers are split over `tensor`, then sharded over `shard` and `context`. The rest (embedding, last norm, output layer)
is not split; it is sharded over `tensor` too. Its gradients are equal on the ranks of a `tensor` group, and FSDP takes
the mean over the ranks it shards over, so one factor, the number of data-parallel ranks, makes sums of both means.
"""

import torch
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

from trainers.errors import ModelUnsupported
from trainers.parallel import World
from trainers.run_config import TrainerConfig

_SPLITTABLE = ("llama", "mistral", "qwen2", "qwen3")
"""`model_type`s whose layers have the names and the data flow that `_split` relies on."""


def shard(model: PreTrainedModel, world: World, dtype: torch.dtype, config: TrainerConfig) -> None:
    """Spread the model over the ranks, in place. Parameters stay float32; arithmetic is done in `dtype`.

    Raises ModelUnsupported for a model that cannot be split as the config asks.
    """
    layer_names = set(model._no_split_modules or ())
    layers = [module for module in model.modules() if type(module).__name__ in layer_names]
    if config.tensor_parallel > 1:
        _refuse_to_split(model, config.tensor_parallel)
        for layer in layers:
            _split(layer, world.mesh["tensor"])
    if config.activation_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if config.compile:
        for layer in layers:
            layer.compile(dynamic=True)
    precise = MixedPrecisionPolicy()
    policy = precise
    if dtype != torch.float32:
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    offload = CPUOffloadPolicy() if config.cpu_offload and world.device.type == "cuda" else OffloadPolicy()
    for layer in layers:
        fully_shard(layer, mesh=world.layer_mesh, mp_policy=policy, offload_policy=offload)
    rest_policy = precise if config.fp32_lm_head else policy
    fully_shard(model, mesh=world.rest_mesh, mp_policy=rest_policy, offload_policy=offload)
    assert isinstance(model, FSDPModule)


def _refuse_to_split(model: PreTrainedModel, ways: int) -> None:
    config = model.config
    if config.model_type not in _SPLITTABLE:
        known = ", ".join(_SPLITTABLE)
        raise ModelUnsupported(
            f"tensor parallelism knows {known} and not {config.model_type}: set trainer.tensor_parallel to 1"
        )
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
