"""What only a GPU shows: bfloat16 beside float32, NCCL, both ways of attention, checkpoints off the device."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainers.support import ROOT
from trainers.model.attention import packed_attention, packed_layout
from trainers.model.lm_head import score_hidden

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="NO GPU THAT TORCH CAN USE: `make gpu` runs this on one"),
]
_ONE_RANK = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]


def run(command: Sequence[str], **options: Any) -> str:
    """The output of a program that must succeed."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def last_line(command: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(command).splitlines()[-1])
    return found


def trained(model: Path, directory: Path, ways: dict[str, dict[str, Any]]) -> dict[str, list[dict[str, float]]]:
    """The metrics of a few steps on random batches, for every way to train."""
    directory.mkdir()
    run([*_ONE_RANK, "-m", "tests.trainers.spread_steps", str(model), str(directory), json.dumps(ways)])
    return {name: json.loads((directory / f"{name}.json").read_text()) for name in ways}


def test_steps_on_the_gpu_are_those_of_the_cpu(model_dir: Path, llama_dir: Path, tmp_path: Path) -> None:
    for model in (model_dir, llama_dir):
        found = trained(
            model, tmp_path / model.name, {device: {"trainer.device": device} for device in ("cpu", "cuda")}
        )
        for ours, theirs in zip(found["cuda"], found["cpu"], strict=True):
            assert ours["loss/mean"] == pytest.approx(theirs["loss/mean"], rel=1e-3, abs=1e-5)
            assert ours["optim/grad_norm"] == pytest.approx(theirs["optim/grad_norm"], rel=1e-2)


def test_steps_in_bfloat16_are_close_to_those_in_float32(llama_dir: Path, tmp_path: Path) -> None:
    """bfloat16 takes the variable-length kernel, float32 padded blocks."""
    ways = {"exact": {"trainer.device": "cuda"}, "rounded": {"trainer.device": "cuda", "model.dtype": "bfloat16"}}
    found = trained(llama_dir, tmp_path / "steps", ways)
    first, rounded = found["exact"][0], found["rounded"][0]
    assert rounded["entropy/mean"] == pytest.approx(first["entropy/mean"], rel=1e-2)
    assert rounded["optim/grad_norm"] == pytest.approx(first["optim/grad_norm"], rel=0.1)
    assert len(found["rounded"]) == len(found["exact"])


def test_the_collectives_of_a_trainer_work_over_nccl_and_gloo_side_by_side(tmp_path: Path) -> None:
    found = last_line([sys.executable, "-m", "benchmarks.gpu.collectives", "--small", f"--work={tmp_path}"])
    assert found["backend"] == "cpu:serial_gloo,cuda:nccl"


def test_a_checkpoint_of_tensors_on_the_gpu_comes_back_to_the_last_bit(tmp_path: Path) -> None:
    found = last_line([sys.executable, "-m", "benchmarks.gpu.checkpoint", "--small", f"--work={tmp_path}"])
    assert found["tensors"] > 0


@pytest.mark.parametrize("width", [64, 48], ids=["as wide as keys", "narrower than keys"])
@pytest.mark.parametrize("key_heads", [8, 2])
@pytest.mark.parametrize("window", [None, 32])
def test_the_variable_length_kernel_equals_padded_blocks_forward_and_backward(
    key_heads: int, window: int | None, width: int
) -> None:
    lengths = [300, 200, 130, 5]
    layout = packed_layout(lengths, torch.device("cuda"))
    torch.manual_seed(0)
    sizes = ((8, 64), (key_heads, 64), (key_heads, width))
    rounded = [torch.randn(1, heads, sum(lengths), size, device="cuda").bfloat16() for heads, size in sizes]

    def attend(dtype: torch.dtype) -> list[torch.Tensor]:
        operands = [tensor.to(dtype).requires_grad_() for tensor in rounded]
        out, _ = packed_attention(torch.nn.Identity(), *operands, None, packed_layout=layout, sliding_window=window)
        return [out.detach(), *torch.autograd.grad(out.float().square().sum(), operands)]

    for kernel, padded in zip(attend(torch.bfloat16), attend(torch.float32), strict=True):
        assert float((kernel.float() - padded).norm() / padded.norm()) < 2e-2


def test_a_rounded_head_is_close_to_exact_where_one_in_bfloat16_is_not() -> None:
    torch.manual_seed(0)
    hidden_KD, targets_K = torch.randn(512, 1024, device="cuda"), torch.randint(32_000, (512,), device="cuda")
    head = torch.nn.Linear(1024, 32_000, bias=False, device="cuda").requires_grad_(False)
    head.weight.normal_(std=3 / 32)  # logits from -13 to 13, as those of a trained model
    exact_K = (hidden_KD.double() @ head.weight.double().T).log_softmax(-1).gather(1, targets_K[:, None])[:, 0]

    def error(head: torch.nn.Linear, rounded: bool) -> float:
        return float((score_hidden(hidden_KD, head, targets_K, 1.0, rounded).logprobs_K - exact_K).abs().max())

    ieee, tensor_cores = error(head, rounded=False), error(head, rounded=True)
    assert ieee < tensor_cores < error(head.bfloat16(), rounded=False) / 4
