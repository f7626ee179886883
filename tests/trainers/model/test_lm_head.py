"""Scores computed chunk by chunk are those of all logits at once, and so are their gradients."""

import pytest
import torch

from trainers.model import lm_head

WIDTH, VOCABULARY = 16, 50


def naive(
    hidden_KD: torch.Tensor, head: torch.nn.Linear, targets_K: torch.Tensor, temperature: float
) -> lm_head.TokenScores:
    logprobs_KV = (head(hidden_KD) / temperature).log_softmax(dim=-1)
    entropy_K = -(logprobs_KV.exp() * logprobs_KV).sum(dim=-1)
    return lm_head.TokenScores(logprobs_KV.gather(1, targets_K[:, None])[:, 0], entropy_K.detach())


@pytest.fixture(params=[1, 3 * VOCABULARY, 10**9], ids=["a token a chunk", "three tokens", "one chunk"])
def _chunked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lm_head, "CHUNK_LOGITS", request.param)


@pytest.mark.usefixtures("_chunked")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("tokens", "temperature"), [(10, 1.0), (10, 0.6), (0, 1.0)])
def test_chunks_equal_the_naive_path(tokens: int, temperature: float, bias: bool) -> None:
    torch.manual_seed(0)
    head = torch.nn.Linear(WIDTH, VOCABULARY, bias=bias)
    targets_K, weights_K = torch.randint(VOCABULARY, (tokens,)), torch.randn(tokens)
    results = []
    for score in (lm_head.score_hidden, naive):
        hidden_KD = torch.randn(tokens, WIDTH, generator=torch.Generator().manual_seed(1)).requires_grad_()
        head.zero_grad()
        scores = score(hidden_KD, head, targets_K, temperature)
        (scores.logprobs_K * weights_K).sum().backward()
        results.append([*scores, hidden_KD.grad, *(parameter.grad for parameter in head.parameters())])
    assert not results[0][1].requires_grad
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_a_frozen_head_passes_the_gradient_on_and_takes_none() -> None:
    head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False).requires_grad_(False)
    hidden_KD = torch.randn(4, WIDTH, requires_grad=True)
    lm_head.score_hidden(hidden_KD, head, torch.arange(4), 1.0).logprobs_K.sum().backward()
    assert head.weight.grad is None
    assert hidden_KD.grad is not None
    assert hidden_KD.grad.any()


def test_a_float32_head_scores_half_precision_states_in_float32() -> None:
    head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
    hidden_KD, targets_K = torch.randn(4, WIDTH).bfloat16(), torch.arange(4)
    ours = lm_head.score_hidden(hidden_KD, head, targets_K, 1.0).logprobs_K
    torch.testing.assert_close(ours, naive(hidden_KD.float(), head, targets_K, 1.0).logprobs_K)
    half = lm_head.score_hidden(hidden_KD, head.bfloat16(), targets_K, 1.0).logprobs_K
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, ours, atol=0.05, rtol=0)


def test_only_the_products_of_a_rounded_head_may_use_tensor_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    linear = torch.nn.functional.linear

    def look(*operands: torch.Tensor) -> torch.Tensor:
        seen.append(torch.backends.cuda.matmul.fp32_precision)
        return linear(*operands)

    monkeypatch.setattr(torch.nn.functional, "linear", look)
    head, hidden_KD = torch.nn.Linear(WIDTH, VOCABULARY), torch.randn(4, WIDTH, requires_grad=True)
    before = torch.backends.cuda.matmul.fp32_precision
    assert before != "tf32"
    for rounded in (True, False):
        lm_head.score_hidden(hidden_KD, head, torch.arange(4), 1.0, rounded).logprobs_K.sum().backward()
        assert torch.backends.cuda.matmul.fp32_precision == before
    assert seen == ["tf32", "tf32", before, before]
