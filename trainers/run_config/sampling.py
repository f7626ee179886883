"""Which problems are played, how the policy is sampled, and what a batch is made of."""

from typing import Any

from pydantic import Field, model_validator

from trainers.run_config.section import ConfigProblem, CrossFieldError, Section

_FILTERED_SAMPLING = {"top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty"}


class EnvironmentRef(Section):
    """One environment of the mixture."""

    name: str = Field(min_length=1)
    """Name in the environment registry."""
    args: dict[str, Any] = {}
    """Arguments of the environment; see its own documentation."""
    weight: float = Field(default=1.0, gt=0)
    """Share of the problems relative to the other environments."""


class SamplingConfig(Section):
    """How the policy is sampled during training episodes."""

    temperature: float = Field(default=1.0, gt=0, le=10)
    """Sampling temperature. The trainer divides its logits by the same number."""
    max_tokens: int = Field(default=512, ge=1)
    """Most tokens the policy may write in one turn."""
    max_turns: int = Field(default=1, ge=1)
    """Most turns of the policy in one episode."""
    group_size: int = Field(default=8, ge=1)
    """Rollouts per problem: they are scored against each other."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_filters(cls, values: Any) -> Any:
        if isinstance(values, dict) and (filters := sorted(_FILTERED_SAMPLING & values.keys())):
            message = "is not supported: it changes the sampled distribution, so importance ratios would be wrong"
            raise CrossFieldError([ConfigProblem(key, f"{message}. Remove it.") for key in filters])
        return values


class BatchConfig(Section):
    """What one optimizer step of an RL run trains on."""

    batch_size: int = Field(default=128, ge=1)
    """Rollouts per optimizer step; a multiple of the group size. Without a meaning when `token_batch_size` is set."""
    token_batch_size: int | None = Field(default=None, ge=1)
    """Tokens per optimizer step, prompts included, at most: batches are then full by their tokens, whatever their
    number of rollouts. A group that has more is a batch alone. How far generation runs ahead follows from the newest
    groups' tokens."""
    window: int | None = Field(default=None, ge=0)
    """Older groups, still being played, that a group may overtake into a batch. 0 trains strictly in the order in which
    groups were begun; without a number it is as many as a batch holds."""
    max_queued_rollouts: int = Field(default=1_000_000, ge=1)
    """Rollouts from outside that may wait. Beyond it submissions are refused with 429; from half of it senders are
    asked to slow down."""
