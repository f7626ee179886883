"""FLOPs by hand, and peaks that are known or absent."""

import pytest
import torch
from transformers import LlamaForCausalLM

from tests.trainers.conftest import tiny_llama_config
from trainers.metrics.throughput import FlopCounter, peak_flops, peak_memory_gib

LAYER_MATRICES = 64 * 64 * 2 + 64 * 32 * 2 + 64 * 96 * 3  # q and o, k and v, the three of the MLP
HEAD = 259 * 64


def test_flops_are_those_of_matrices_attention_and_the_scored_tokens() -> None:
    counter = FlopCounter(LlamaForCausalLM(tiny_llama_config()))
    assert counter.is_exact
    matrices = 6 * 2 * LAYER_MATRICES * (10 + 30)
    attention = 2 * 6 * 64 * (10**2 + 30**2)  # layers x 6 x heads x head width x squared tokens
    assert counter.of_step([10, 30], trained_tokens=7) == matrices + attention + 6 * HEAD * 7


def test_a_frozen_matrix_has_no_gradient_to_compute() -> None:
    model = LlamaForCausalLM(tiny_llama_config()).requires_grad_(False)
    assert FlopCounter(model).of_step([1], 0) == 4 * 2 * LAYER_MATRICES + 2 * 6 * 64


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989),
        ("NVIDIA H200 NVL", 835),
        ("NVIDIA GeForce GTX 960", None),
    ],
)
def test_a_peak_is_known_by_the_name_of_the_gpu(
    monkeypatch: pytest.MonkeyPatch, name: str, tflops: float | None
) -> None:
    monkeypatch.setattr("torch.cuda.get_device_name", lambda _device: name)
    assert peak_flops(torch.device("cuda"), None) == (tflops and tflops * 1e12)


def test_a_peak_is_configured_or_unknown_on_cpu() -> None:
    cpu = torch.device("cpu")
    assert peak_flops(cpu, None) is None
    assert peak_flops(cpu, 0.5) == pytest.approx(5e11)
    assert 0.01 < peak_memory_gib(cpu) < 1000
