"""Where the metrics of a run go besides the control plane."""

from pydantic import Field

from trainers.run_config.section import Section


class TrackingConfig(Section):
    """Copies of the trainer's metrics for other tools. The control plane has them in any case."""

    wandb: bool = False
    """Log to Weights & Biases: online when WANDB_API_KEY is set, otherwise to files that `wandb sync` uploads later."""
    wandb_project: str = Field(default="rollyard", min_length=1, max_length=128, pattern=r"^[^/\\#?%:]+$")
    """Project at Weights & Biases."""
    wandb_entity: str = ""
    """User or team at Weights & Biases; empty is the default of the key."""
    tensorboard: bool = False
    """Write TensorBoard files, under `tracking/tensorboard` in the run's directory."""
