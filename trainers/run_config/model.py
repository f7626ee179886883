"""Where a run starts from, and what of it is trained."""

from typing import Annotated, Literal

from pydantic import Field

from trainers.run_config.section import Section

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Sizes that vLLM reserves room for; an adapter takes the next one."""


class LoraConfig(Section):
    """Train small matrices beside frozen weights instead of the weights (LoRA, arXiv:2106.09685)."""

    rank: int = Field(default=0, ge=0, le=LORA_RANKS[-1])
    """Width of the matrices; 0 trains all weights. Policy versions and checkpoints then hold the adapter alone."""
    alpha: int = Field(default=32, ge=1)
    """The adapter's output is scaled by alpha / rank."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of an adapter's inputs dropped in training. Keep 0 in RL: inference drops none, logprobs would differ."""
    target_modules: list[Annotated[str, Field(min_length=1)]] = Field(
        default=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], min_length=1
    )
    """Names of the linear layers that get an adapter, in every decoder layer that has them."""
    path: str = ""
    """Directory with an adapter in PEFT's format to start from, of the same rank, alpha and target modules."""


class ModelConfig(Section):
    """Where the run starts from."""

    path: str = ""
    """A model registered in the project, an absolute directory with a Hugging Face model and its tokenizer, RUN@STEP
    for a checkpoint, or a name of the hub. These weights are policy version 0."""
    endpoint: str = Field(default="", max_length=64)
    """An endpoint that plays instead (`rollyard endpoints list`). Eval runs alone ask one: nothing of it is trained."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format the trainer computes in and writes weights in. Master weights and gradients stay float32."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model, in the run's sandbox. An administrator has to allow it by the model's
    name."""
    lora: LoraConfig = LoraConfig()
    """Train small matrices beside frozen weights instead of the weights."""
