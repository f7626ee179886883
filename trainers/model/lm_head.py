"""Logprobs and entropies of trained tokens without the logits of all of them at once.

K tokens of a vocabulary of V have K x V logits, and a plain cross-entropy holds several such arrays until the backward
pass: 8,192 tokens of a vocabulary of 150,000 are 5 GB per array. Here the head is applied to a chunk of tokens at a
time and only K numbers are kept; the backward pass computes the logits of each chunk again. Peak memory is a few
chunks, whatever K and V are, for one more matrix product (`benchmarks/logprob_memory.py`). Gradients are exact:

    d logprob(t) / d logits = (onehot(t) - softmax(logits / temperature)) / temperature

Shapes: K trained tokens, D width, V vocabulary, C tokens of a chunk.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

CHUNK_LOGITS = 2**25
"""Logits of one chunk, 128 MiB in float32: small beside a model, large enough for efficient matrix products."""


class TokenScores(NamedTuple):
    """What the policy says about the trained tokens."""

    logprobs_K: torch.Tensor
    """float32, with gradient."""
    entropy_K: torch.Tensor
    """float32, of the temperature-scaled distribution, without gradient."""


def score_hidden(
    hidden_KD: torch.Tensor, head: torch.nn.Linear, targets_K: torch.Tensor, temperature: float, rounded: bool = False
) -> TokenScores:
    """Score `targets_K` given the hidden states that predict them.

    The matrix product is done in the number format of the head's weight, everything after it in float32. `rounded`: on
    CUDA float32 may be rounded to 10 bits before it is multiplied, which is several times as fast.
    """
    logprobs_K, entropy_K = _ChunkedScores.apply(hidden_KD, head.weight, head.bias, targets_K, temperature, rounded)
    return TokenScores(logprobs_K, entropy_K)


@contextmanager
def _products(rounded: bool) -> Iterator[None]:
    """Of float32 arrays on CUDA: with what is multiplied rounded to TensorFloat-32 (10 bits), and added in float32.

    Here alone and not in the whole trainer: a model's positions are such products too, and wrong above 2,048 so.
    """
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32" if rounded else before
    try:
        yield
    finally:
        matmul.fp32_precision = before


class _ChunkedScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_KD: torch.Tensor,
        weight_VD: torch.Tensor,
        bias_V: torch.Tensor | None,
        targets_K: torch.Tensor,
        temperature: float,
        rounded: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs_K = hidden_KD.new_empty(len(hidden_KD), dtype=torch.float32)
        entropy_K, normaliser_K = torch.empty_like(logprobs_K), torch.empty_like(logprobs_K)
        for chunk in _chunks(hidden_KD, weight_VD):
            with _products(rounded):
                logits_CV = _logits(hidden_KD[chunk], weight_VD, bias_V, temperature)
            normaliser_K[chunk] = logits_CV.logsumexp(dim=-1)
            logprobs_CV = logits_CV.sub_(normaliser_K[chunk, None])
            logprobs_K[chunk] = logprobs_CV.gather(1, targets_K[chunk, None])[:, 0]
            entropy_K[chunk] = -logprobs_CV.exp().mul_(logprobs_CV).sum(dim=-1)
        ctx.save_for_backward(hidden_KD, weight_VD, bias_V, targets_K, normaliser_K)
        ctx.temperature, ctx.rounded = temperature, rounded
        ctx.mark_non_differentiable(entropy_K)
        return logprobs_K, entropy_K

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_K: torch.Tensor, _grad_entropy_K: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden_KD, weight_VD, bias_V, targets_K, normaliser_K = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        grad_hidden_KD = torch.empty_like(hidden_KD) if needs_hidden else None
        grad_weight_VD = torch.zeros_like(weight_VD, dtype=torch.float32) if needs_weight else None
        grad_bias_V = torch.zeros_like(bias_V, dtype=torch.float32) if needs_bias else None
        scaled_grad_K = grad_K / ctx.temperature
        with _products(ctx.rounded):
            for chunk in _chunks(hidden_KD, weight_VD):
                logits_CV = _logits(hidden_KD[chunk], weight_VD, bias_V, ctx.temperature)
                grad_CV = logits_CV.sub_(normaliser_K[chunk, None]).exp_().mul_(-scaled_grad_K[chunk, None])
                grad_CV.scatter_add_(1, targets_K[chunk, None], scaled_grad_K[chunk, None])
                if grad_bias_V is not None:
                    grad_bias_V += grad_CV.sum(dim=0)
                grad_CV = grad_CV.to(weight_VD.dtype)
                if grad_hidden_KD is not None:
                    grad_hidden_KD[chunk] = (grad_CV @ weight_VD).to(hidden_KD.dtype)
                if grad_weight_VD is not None:
                    _add_product(grad_weight_VD, grad_CV.T, hidden_KD[chunk].to(weight_VD.dtype))
        return (
            grad_hidden_KD,
            None if grad_weight_VD is None else grad_weight_VD.to(weight_VD.dtype),
            None if grad_bias_V is None else grad_bias_V.to(bias_V.dtype),
            None,
            None,
            None,
        )


def _chunks(hidden_KD: torch.Tensor, weight_VD: torch.Tensor) -> list[slice]:
    size = max(1, CHUNK_LOGITS // len(weight_VD))
    return [slice(begin, begin + size) for begin in range(0, len(hidden_KD), size)]


def _logits(
    hidden_CD: torch.Tensor, weight_VD: torch.Tensor, bias_V: torch.Tensor | None, temperature: float
) -> torch.Tensor:
    """float32, divided by the temperature; a tensor of its own that the caller may write into."""
    logits_CV = torch.nn.functional.linear(hidden_CD.to(weight_VD.dtype), weight_VD, bias_V)
    return logits_CV.float().div_(temperature)


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """total += left @ right, with no second array of the size of `total` where the number formats allow it."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right
