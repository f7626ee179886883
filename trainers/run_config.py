"""The run config tree: what a person writes as TOML, the store keeps as JSON and the trainer parses, by one class.

The docstring under a field is its help text in the JSON schema, the launch form and the API docs, so it is written for
the person who launches a run. How files, environment variables and overrides become this tree: `trainers/config.py`.
"""

from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

_FILTERED_SAMPLING = {"top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty"}


class ConfigProblem(NamedTuple):
    """One thing wrong with a run config."""

    path: str
    """Dotted key, such as `batch.batch_size`; empty for the config as a whole."""
    message: str


class CrossFieldError(ValueError):
    """Several keys contradict each other; carries every contradiction, not only the first."""

    def __init__(self, problems: list[ConfigProblem]) -> None:
        super().__init__("; ".join(f"{path}: {message}" for path, message in problems))
        self.problems = problems


class Section(BaseModel):
    """Base of every section: immutable, unknown keys refused, docstrings are descriptions."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class ModelConfig(Section):
    """Where the run starts from."""

    path: str = ""
    """Directory with a Hugging Face model and its tokenizer, or a hub name. These weights are policy version 0."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format the trainer computes in and writes weights in. Master weights and gradients stay float32."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Only for models you trust as much as your own code."""


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
    """Rollouts per optimizer step; a multiple of the group size."""
    token_batch_size: int | None = Field(default=None, ge=1)
    """Tokens per optimizer step, at most: batches are then full by their tokens, whatever their number of rollouts."""
    window: int | None = Field(default=None, ge=0)
    """Older groups, still being played, that a group may overtake into a batch. 0 trains strictly in the order in which
    groups were begun; without a number it is as many as a batch holds."""
    max_queued_rollouts: int = Field(default=1_000_000, ge=1)
    """Rollouts from outside that may wait. Beyond it submissions are refused with 429; from half of it senders are
    asked to slow down."""


class GrpoLoss(Section):
    """Clipped policy gradient (arXiv:2402.03300) against the inference engine's logprobs."""

    type: Literal["grpo"] = "grpo"
    """Name of the loss."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """The ratio is clipped below at one minus this."""
    clip_high: float = Field(default=0.2, gt=0)
    """The ratio is clipped above at one plus this."""
    normaliser: Literal["token"] = "token"
    """What the summed loss is divided by: `token` is every trained token of the batch, over all ranks."""


class AlgorithmConfig(Section):
    """Advantages, loss, and how far training may run ahead of generation."""

    loss: GrpoLoss = GrpoLoss()
    """The objective."""
    advantage: Literal["mean_std", "mean"] = "mean_std"
    """`mean_std` centres rewards per group and divides by their deviation; `mean` only centres them."""
    std_epsilon: float = Field(default=1e-6, ge=0)
    """Added to the deviation before dividing."""
    max_off_policy_steps: int = Field(default=8, ge=0)
    """Groups whose oldest token is more steps old than this are dropped as stale."""
    max_async_level: int = Field(default=2, ge=0)
    """Steps that generation may run ahead of the live policy version. 0 is fully synchronous."""
    strict_async_level: bool = False
    """Publish new weights only between groups, so that every batch has exactly the lag of the async level."""
    filter_zero_advantage: bool = False
    """Drop groups whose rewards are all equal; they carry no gradient."""


class OptimizerConfig(Section):
    """AdamW and its schedule."""

    lr: float = Field(default=1e-5, gt=0)
    """Peak learning rate."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.95)
    """Decay of the first and second moments."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of the second moment."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay, on matrices only."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to this norm."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps of linear warm-up from zero."""
    schedule: Literal["constant", "linear"] = "constant"
    """After warm-up: keep the rate, or let it fall linearly to zero at `max_steps`."""


class TrainerConfig(Section):
    """The training processes and what they leave on disk."""

    world_size: int = Field(default=1, ge=1)
    """Training processes on the node; model, gradients and optimizer are sharded over them."""
    seq_len: int = Field(default=2048, ge=8)
    """Tokens in one packed micro-batch. Longer rollouts are cut to it."""
    checkpoint_every: int = Field(default=10, ge=1)
    """Steps between checkpoints."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Newest checkpoints kept on disk."""
    keep_weights: int = Field(default=4, ge=1)
    """Superseded policy versions kept on disk, besides the live one and those that wait to go live."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; `auto` takes CUDA when there is any."""


class InferenceConfig(Section):
    """The vLLM servers that play the policy."""

    replicas: int = Field(default=1, ge=0)
    """Servers to start. 0: rollouts come from outside only."""
    dtype: Literal["auto", "float32", "bfloat16"] = "float32"
    """Number format of inference. The closer to the trainer's, the smaller the mismatch."""
    max_model_len: int = Field(default=2048, ge=16)
    """Longest context in tokens, prompt included."""
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    """Share of GPU memory a server may take. Has no meaning on CPU."""
    kv_cache_gib: float = Field(default=1.0, gt=0)
    """Memory for the key-value cache of a server on CPU, in GiB."""


class EvaluationConfig(Section):
    """Greedy (or sampled) play on held-out problems. Leave the section out for no evaluation."""

    every: int = Field(default=0, ge=0)
    """Policy versions between evaluations. 0: only the first and the last version."""
    problems: int = Field(default=64, ge=1)
    """Held-out problems per environment."""
    rollouts_per_problem: int = Field(default=1, ge=1)
    """Rollouts of each problem."""
    temperature: float = Field(default=0.0, ge=0, le=10)
    """Sampling temperature; 0 is greedy."""
    deadline_s: float = Field(default=600.0, gt=0)
    """Seconds after which an evaluation is closed with what it has."""


class DataConfig(Section):
    """What a supervised run trains on."""

    path: str = Field(min_length=1)
    """JSONL file with one `{"messages": [{"role", "content"}, ...]}` per line."""
    batch_size: int = Field(default=64, ge=1)
    """Conversations per optimizer step."""


class WorkersConfig(Section):
    """The episode drivers."""

    concurrency: int = Field(default=16, ge=1)
    """Groups one driver plays at the same time."""
    lease_s: float = Field(default=30.0, gt=0)
    """Seconds after which the groups of a silent driver are given to another."""


class LauncherConfig(Section):
    """What starts trainer and inference processes."""

    type: Literal["local"] = "local"
    """`local` starts them on this machine."""


class RunConfig(Section):
    """Everything that defines a run. Never changed after the run is created."""

    kind: Literal["rl", "sft", "external"] = "rl"
    """`rl` learns from scored rollouts, `sft` from example conversations; an `external` run stores and hands out groups
    for a trainer of your own."""
    name: str = Field(default="", max_length=64, pattern=r"^([a-z0-9][a-z0-9-]*)?$")
    """Short name: lower-case letters, digits and dashes. Empty: one is made up."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of everything random."""
    max_steps: int = Field(ge=1)
    """Optimizer steps; the run ends with policy version `max_steps`."""
    model: ModelConfig = ModelConfig()
    environments: list[EnvironmentRef] = []
    """The environments that problems are drawn from. An SFT run needs them only for evaluation."""
    sampling: SamplingConfig = SamplingConfig()
    batch: BatchConfig = BatchConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    trainer: TrainerConfig = TrainerConfig()
    inference: InferenceConfig = InferenceConfig()
    evaluation: EvaluationConfig | None = None
    """Evaluation on held-out problems; without this section there is none."""
    data: DataConfig | None = None
    """Training data of an SFT run."""
    workers: WorkersConfig = WorkersConfig()
    launcher: LauncherConfig = LauncherConfig()

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        of_kind = {"rl": self._rl_problems, "sft": self._sft_problems, "external": list}[self.kind]
        problems = [*self._optimizer_problems(), *self._model_problems(), *of_kind()]
        if problems:
            raise CrossFieldError([ConfigProblem(path, message) for path, message in problems])
        return self

    def _optimizer_problems(self) -> list[tuple[str, str]]:
        optimizer = self.optimizer
        if optimizer.schedule == "linear" and optimizer.warmup_steps >= self.max_steps:
            fix = f"Lower it or raise max_steps ({self.max_steps})."
            return [("optimizer.warmup_steps", f"leaves no step for the linear decay. {fix}")]
        return []

    def _model_problems(self) -> list[tuple[str, str]]:
        if self.kind != "external" and not self.model.path:
            return [("model.path", "is required: name a directory with a Hugging Face model, or a model of the hub.")]
        return []

    def _sft_problems(self) -> list[tuple[str, str]]:
        if self.data is None:
            return [("data.path", "is required for an SFT run: name a JSONL file of conversations.")]
        return []

    def _rl_problems(self) -> list[tuple[str, str]]:
        problems = []
        sampling = self.sampling
        if not self.environments:
            problems.append(("environments", "is empty: an RL run needs at least one environment."))
        names = [environment.name for environment in self.environments]
        for name in sorted({name for name in names if names.count(name) > 1}):
            problems.append(("environments", f"names {name!r} twice. Keep one and set its weight."))
        if self.data is not None:
            problems.append(("data", "belongs to SFT runs. Remove it or set kind to 'sft'."))
        if sampling.group_size == 1:
            reason = "gives every rollout advantage 0, because a group is its own baseline"
            problems.append(("sampling.group_size", f"1 {reason}. Use at least 2."))
        if self.batch.batch_size % sampling.group_size:
            lower = self.batch.batch_size // sampling.group_size * sampling.group_size
            fix = f"Use {lower or sampling.group_size} or {lower + sampling.group_size}."
            size = f"{self.batch.batch_size} is not a multiple of sampling.group_size ({sampling.group_size})"
            problems.append(("batch.batch_size", f"{size}. {fix}"))
        if sampling.max_tokens >= self.inference.max_model_len:
            limit = f"inference.max_model_len ({self.inference.max_model_len})"
            fix = "Raise that or lower this."
            problems.append(
                ("sampling.max_tokens", f"{sampling.max_tokens} leaves no room for a prompt in {limit}. {fix}")
            )
        if sampling.max_tokens >= self.trainer.seq_len:
            fix = f"Use more than sampling.max_tokens ({sampling.max_tokens}) plus the longest prompt."
            problems.append(("trainer.seq_len", f"{self.trainer.seq_len} would cut rollouts short. {fix}"))
        return problems
