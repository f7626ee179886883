"""How hard the hardware worked in a step: model FLOPs, their share of the device's peak, memory.

A trained parameter of a matrix costs 6 FLOPs a token (2 forward, 2 for its own gradient, 2 for the input's), a frozen
one 4; the output layer is applied to trained tokens only. Causal attention over T tokens costs 6 x T^2 x heads x head
width a layer: two products of 2 x T^2 x heads x head width, half of it masked, three times for the backward pass (arXiv
2204.02311, appendix B, with the causal half left out). Padding, recomputation and a second pass over logits are not
counted: they are work, but none of the model's.
"""

import resource
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

_PEAK_TFLOPS = {
    "A100": 312.0,
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.0,
    "H200 NVL": 835.0,
    "H200": 989.0,
    "B200": 2250.0,
    "L40S": 362.0,
}
"""Dense bfloat16 peak by a part of the device's name (data sheets); the first part that fits counts."""


class FlopCounter:
    """Model FLOPs of a step, from the sizes of the model's layers."""

    def __init__(self, model: PreTrainedModel) -> None:
        head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
        of_tokens = {id(module.weight) for module in (head, embedding)}
        matrices = [p for p in model.parameters() if p.ndim == 2 and id(p) not in of_tokens]
        self._per_token = sum(_flops_per_token(matrix) for matrix in matrices)
        self._per_trained_token = _flops_per_token(head.weight)
        config = model.config.get_text_config()
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._per_squared_token = 6 * config.num_hidden_layers * config.num_attention_heads * head_dim
        self.is_exact = getattr(config, "num_experts_per_tok", None) is None
        """False for mixtures of experts, where a token meets only some of the parameters."""

    def of_step(self, lengths: Sequence[int], trained_tokens: int) -> float:
        """FLOPs of forward and backward over sequences of these lengths."""
        squares = sum(length**2 for length in lengths)
        whole = self._per_token * sum(lengths) + self._per_squared_token * squares
        return float(whole + self._per_trained_token * trained_tokens)


def peak_flops(device: torch.device, peak_tflops: float | None) -> float | None:
    """Peak FLOP/s of one device: as configured, else by its name, else unknown."""
    if peak_tflops is not None:
        return peak_tflops * 1e12
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak * 1e12 for part, peak in _PEAK_TFLOPS.items() if part in name), None)


def peak_memory_gib(device: torch.device) -> float:
    """Most memory that this process ever had on its device; on CPU its resident memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # in KiB on Linux


def _flops_per_token(matrix: torch.Tensor) -> int:
    return (6 if matrix.requires_grad else 4) * matrix.numel()
