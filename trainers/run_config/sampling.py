"""Which problems are played, how the policy is sampled, and what a batch is made of."""

from typing import Any, Literal

from pydantic import Field, model_validator

from trainers.run_config.section import ConfigProblem, CrossFieldError, Section

_FILTERED_SAMPLING = {"top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty"}


class EnvironmentRef(Section):
    """One environment of the mixture, and the room it has."""

    name: str = Field(min_length=1)
    """Name in the environment registry; or `module:Class` of the virtual environment that `python` names."""
    label: str = Field(default="", max_length=100)
    """Name in the run; by default `name`. For two environments of one kind."""
    args: dict[str, Any] = {}
    """Arguments of the environment; see its own documentation."""
    weight: float = Field(default=1.0, gt=0)
    """Share of the problems relative to the other environments."""
    process: Literal["inline", "isolated"] | None = None
    """`inline`: in the driver, which only environments that ship with Rollyard may. `isolated`: in processes and a
    sandbox of its own, so that what crashes, hangs or blocks costs its own episodes only. By default what ships with
    Rollyard plays inline and everything else isolated."""
    python: str = ""
    """Virtual environment that its processes run in: a name from `rollyard envs list`, or the absolute path of one. By
    default that of Rollyard."""
    max_processes: int = Field(default=4, ge=1, le=64)
    """Processes that an isolated environment has in each driver at most; there is one while it has little to do."""
    timeout_s: float = Field(default=1200.0, gt=0)
    """Seconds that an episode may take, and once more its scoring."""
    memory_gib: float = Field(default=4.0, gt=0)
    """Memory that each of its processes may use, with everything that it starts."""

    @model_validator(mode="after")
    def _check_room(self) -> "EnvironmentRef":
        if self.process == "inline" and self.python:
            problem = ConfigProblem("python", "is for processes of its own: leave process out, or set it to isolated.")
            raise CrossFieldError([problem])
        return self

    @property
    def run_name(self) -> str:
        """What it is called in the run."""
        return self.label or self.name


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
    max_fruitless_groups: int | None = Field(default=None, ge=0)
    """Groups in a row none of which was of use, after which the run ends: every rollout failed, or all rewards were
    equal and such groups are filtered. Without a number as many as ten batches take, 1,000 where batches are full by
    their tokens; 0: it goes on for ever."""
