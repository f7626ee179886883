"""Where a run starts from."""

from typing import Literal

from trainers.run_config.section import Section


class ModelConfig(Section):
    """Where the run starts from."""

    path: str = ""
    """Directory with a Hugging Face model and its tokenizer, or a hub name. These weights are policy version 0."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format the trainer computes in and writes weights in. Master weights and gradients stay float32."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Only for models you trust as much as your own code."""
