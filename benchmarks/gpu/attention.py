"""Attention inside packed sequences: the variable-length kernel beside padded blocks, and its speed at full length.

FLOPs are those of the model (`trainers/metrics/throughput.py`): the causal half, forward and backward.
"""

import time

import torch

from benchmarks.gpu.setting import Size, finish, options, synchronise
from trainers.model.attention import PackedLayout, packed_attention, packed_layout

_TOLERANCE = 0.03
"""bfloat16 has 8 bits; gradients add up over a sequence."""
_ROUNDS = 10


def inputs(size: Size, tokens: int, device: torch.device, dtype: torch.dtype) -> list[torch.Tensor]:
    """Query, key and value of packed tokens, [1, H, N, E], and a gradient for what comes out, [1, N, H, E]."""
    torch.manual_seed(0)
    shapes = [(1, heads, tokens, size.head_width) for heads in (size.heads, size.key_heads, size.key_heads)]
    shapes.append((1, tokens, size.heads, size.head_width))
    return [torch.randn(shape, device=device).to(dtype) for shape in shapes]


def attend(tensors: list[torch.Tensor], layout: PackedLayout) -> list[torch.Tensor]:
    """What comes out, and the gradients of query, key and value."""
    *operands, grad = tensors
    query, key, value = (tensor.detach().requires_grad_() for tensor in operands)
    out, _ = packed_attention(torch.nn.Identity(), query, key, value, None, packed_layout=layout)
    return [out.detach(), *torch.autograd.grad(out, (query, key, value), grad)]


def main() -> None:
    asked = options()
    size, device = asked.size, torch.device(asked.device)
    dtype = torch.bfloat16
    lengths = [size.tokens // 16, size.tokens // 20, size.tokens // 40, 5]
    layout = packed_layout(lengths, device)
    rounded = inputs(size, sum(lengths), device, dtype)
    kernel = attend(rounded, layout)
    padded = attend([tensor.float() for tensor in rounded], layout)
    errors = {
        f"{name}_error": float((one.float() - other).norm() / other.norm())
        for name, one, other in zip(("out", "query", "key", "value"), kernel, padded, strict=True)
    }
    fault = "" if max(errors.values()) < _TOLERANCE else f"kernel and padded blocks differ: {errors}"

    figures: dict[str, float] = dict(errors)
    whole = [size.tokens]
    quarters = [size.tokens // 4] * 4
    for name, lengths in (("one_sequence", whole), ("four_sequences", quarters)):
        layout, tensors = packed_layout(lengths, device), inputs(size, size.tokens, device, dtype)
        attend(tensors, layout)
        synchronise(device)
        begin = time.perf_counter()
        for _ in range(_ROUNDS):
            attend(tensors, layout)
        synchronise(device)
        seconds = (time.perf_counter() - begin) / _ROUNDS
        flops = 6 * size.heads * size.head_width * sum(length**2 for length in lengths)
        figures |= {f"{name}_ms": seconds * 1e3, f"{name}_tflops": flops / seconds / 1e12}
    finish(figures, fault)


if __name__ == "__main__":
    main()
