"""What is recorded of training besides its metrics, and where those go besides the control plane."""

from pydantic import Field

from trainers.run_config.section import Section


class TrackingConfig(Section):
    """What is recorded of training, and copies of its metrics for other tools. The control plane has the metrics in any
    case."""

    token_values_share: float = Field(default=0.02, ge=0, le=1)
    """Share of an RL step's rollouts whose tokens are recorded as the optimizer saw them: logprob, entropy, ratio,
    advantage, mask. At least one rollout of each step; 0: none."""
    wandb: bool = False
    """Log to Weights & Biases, as files that `wandb sync` uploads: a run has no network. Without sandboxes it logs
    online when WANDB_API_KEY is set."""
    wandb_project: str = Field(default="rollyard", min_length=1, max_length=128, pattern=r"^[^/\\#?%:]+$")
    """Project at Weights & Biases."""
    wandb_entity: str = ""
    """User or team at Weights & Biases; empty is the default of the key."""
    tensorboard: bool = False
    """Write TensorBoard files, under `tracking/tensorboard` in the run's directory."""
