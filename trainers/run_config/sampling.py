"""Which problems are played, how the policy is sampled, and what a batch is made of."""

from itertools import pairwise
from typing import Any, Literal

from pydantic import Field, model_validator

from environments import registry, seats
from trainers.run_config.algorithm import AlgorithmConfig
from trainers.run_config.losses import AdvantageMethod
from trainers.run_config.pools import PoolsConfig
from trainers.run_config.review import ReviewConfig
from trainers.run_config.schedule import WeightPoint, weight_at
from trainers.run_config.section import ConfigProblem, CrossFieldError, Section

_FILTERED_SAMPLING = {"top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty"}


class SamplingConfig(Section):
    """How the policy is sampled during training episodes."""

    temperature: float = Field(default=1.0, gt=0, le=10)
    """Sampling temperature. The trainer divides its logits by the same number."""
    max_tokens: int = Field(default=512, ge=1)
    """Most tokens the policy may write in one turn."""
    max_turns: int = Field(default=1, ge=1)
    """Most turns of the policy in one episode."""
    group_size: int = Field(default=8, ge=1)
    """Episodes per problem, which are scored against each other. Each leaves a rollout; a match leaves one for every
    seat that the run plays."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_filters(cls, values: Any) -> Any:
        if isinstance(values, dict) and (filters := sorted(_FILTERED_SAMPLING & values.keys())):
            message = "is not supported: it changes the sampled distribution, so importance ratios would be wrong"
            raise CrossFieldError([ConfigProblem(key, f"{message}. Remove it.") for key in filters])
        return values


class EnvironmentRef(Section):
    """One environment of the mixture: how it is played and compared, and the room it has. What it does not say of its
    episodes is as `sampling` has it. The temperature is the run's alone: the trainer divides all its logits by one
    number."""

    name: str = Field(min_length=1)
    """Name in the environment registry; or `module:Class` of the virtual environment that `python` names."""
    label: str = Field(default="", max_length=100)
    """Name in the run; by default `name`. For two environments of one kind."""
    args: dict[str, Any] = {}
    """Arguments of the environment; see its own documentation."""
    weight: float = Field(default=1.0, gt=0)
    """Share of the rollouts relative to the other environments."""
    schedule: list[WeightPoint] = []
    """The weight at certain steps, in place of `weight`: points such as `{ step = 100, weight = 0.5 }`, with straight
    lines between them. It is set when the batch of the step before is formed."""
    group_size: int | None = Field(default=None, ge=1)
    """Episodes per problem; by default `sampling.group_size`."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Most tokens the policy may write in one turn; by default `sampling.max_tokens`."""
    max_turns: int | None = Field(default=None, ge=1)
    """Most turns of the policy in one episode; by default `sampling.max_turns`."""
    advantage: AdvantageMethod | None = None
    """How rewards of its groups become advantages; by default as `algorithm.advantage` says."""
    solved_at: float = 1.0
    """Reward from which a rollout counts as having solved its problem: what solve rates, filters and, unless they say
    otherwise, pools go by."""
    problems: int | None = Field(default=None, ge=1)
    """Train on the first so many of its problems only, again and again; by default on all that it has."""
    pools: PoolsConfig | None = None
    """Hand problems out by how often they are solved; without this section in their order."""
    review: ReviewConfig | None = None
    """Hold groups until a person has looked at them; without this section nothing waits for people."""
    seats: dict[str, str] = {}
    """Who plays each seat of an environment that has several: `run`, the policy of the run, whose rollouts of that seat
    are trained on, or one of `policies` by its name. By default the run plays all of them, against itself. Of an
    environment that does not ship with Rollyard name every seat."""
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
    def _refuse_contradictions(self) -> "EnvironmentRef":
        problems = []
        if self.process == "inline" and self.python:
            message = "is for processes of its own: leave process out, or set it to isolated."
            problems.append(ConfigProblem("python", message))
        if self.schedule and self.weight != type(self).model_fields["weight"].default:
            problems.append(ConfigProblem("weight", "and schedule both say the weight. Leave one of them out."))
        if any(left.step >= right.step for left, right in pairwise(self.schedule)):
            message = "has steps that are not in order. Give each point a higher step than the one before."
            problems.append(ConfigProblem("schedule", message))
        if problems:
            raise CrossFieldError(problems)
        return self

    @property
    def run_name(self) -> str:
        """What it is called in the run."""
        return self.label or self.name

    @property
    def seating(self) -> dict[str, str]:
        """Who plays each seat; empty for an environment that has none."""
        return dict.fromkeys(registry.seats_of(self.name), seats.RUN) | self.seats

    @property
    def own_seats(self) -> list[str]:
        """The seats of which each episode leaves a rollout; without seats it is one, without a name."""
        return seats.own(self.seating)

    def weight_at(self, step: int) -> float:
        """Its weight while the batch of a step is formed, and what may then be claimed is."""
        return weight_at(self.schedule, step) if self.schedule else self.weight

    def sampling(self, of_run: SamplingConfig) -> SamplingConfig:
        """How its episodes are sampled, and how many there are of a problem."""
        own = {"group_size": self.group_size, "max_tokens": self.max_tokens, "max_turns": self.max_turns}
        return of_run.model_copy(update={key: value for key, value in own.items() if value is not None})

    def algorithm(self, of_run: AlgorithmConfig) -> AlgorithmConfig:
        """What its groups are trained by: the run's algorithm, with its own advantage."""
        return of_run if self.advantage is None else of_run.model_copy(update={"advantage": self.advantage})


class BatchConfig(Section):
    """What one optimizer step of an RL run trains on."""

    batch_size: int = Field(default=128, ge=1)
    """Rollouts per optimizer step; a multiple of those of a group. Without a meaning when `token_batch_size` is set."""
    token_batch_size: int | None = Field(default=None, ge=1)
    """Tokens per optimizer step, prompts included, at most: batches are then full by their tokens, whatever their
    number of rollouts. A group that has more is a batch alone. How far generation runs ahead follows from the newest
    groups' tokens."""
    oversampling: float = Field(default=1.0, ge=1, le=4)
    """Rollouts begun for a batch, relative to what it holds: with 1.25 a quarter more, so that it need not wait for its
    slowest groups. As many as are too many by then are given up, which favours problems that are finished quickly."""
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
