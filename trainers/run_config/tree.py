"""The whole tree, and what its sections must agree on."""

from typing import Any, Literal, Self

from pydantic import Field, ValidationInfo, model_validator

from trainers.run_config.algorithm import AlgorithmConfig
from trainers.run_config.data import DataConfig
from trainers.run_config.model import ModelConfig
from trainers.run_config.sampling import BatchConfig, EnvironmentRef, SamplingConfig
from trainers.run_config.section import STORED, ConfigProblem, CrossFieldError, Section, is_stored
from trainers.run_config.serving import EvaluationConfig, InferenceConfig, LauncherConfig, WorkersConfig
from trainers.run_config.tracking import TrackingConfig
from trainers.run_config.trainer import OptimizerConfig, TrainerConfig


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
    register_as: str = Field(default="", max_length=64, pattern=r"^([a-z0-9][a-z0-9._-]*)?$")
    """Name under which the last policy version is registered as a model when the run has finished. Empty: it is not."""
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
    tracking: TrackingConfig = TrackingConfig()

    @property
    def is_played(self) -> bool:
        """Whether episodes are played on inference servers of the run: to train on them, or only to evaluate."""
        return self.kind == "rl" or (self.kind == "sft" and self.evaluation is not None)

    @property
    def fruitless_limit(self) -> int:
        """Groups of no use in a row after which a run ends; 0: it never does."""
        if self.batch.max_fruitless_groups is not None:
            return self.batch.max_fruitless_groups
        return 1_000 if self.batch.token_batch_size else 10 * self.batch.batch_size // self.sampling.group_size

    @classmethod
    def stored(cls, values: Any) -> Self:
        """The config of a run, which was checked when the run was made. What has been forbidden since is no fault of
        it: a run of last year can still be read, and a trainer that is restarted goes on."""
        return cls.model_validate(values, context=STORED)

    @model_validator(mode="after")
    def _refuse_contradictions(self, info: ValidationInfo) -> Self:
        if is_stored(info):
            return self
        of_kind = {"rl": self._rl_problems, "sft": self._sft_problems, "external": list}[self.kind]
        problems = [
            *self.optimizer.problems(self.max_steps),
            *self.trainer.problems(),
            *self._model_problems(),
            *of_kind(),
        ]
        if problems:
            raise CrossFieldError([ConfigProblem(path, message) for path, message in problems])
        return self

    def _model_problems(self) -> list[tuple[str, str]]:
        problems = []
        if self.kind != "external" and not self.model.path:
            problems.append(
                ("model.path", "is required: a registered model, an absolute directory, RUN@STEP or a name of the hub.")
            )
        lora = self.model.lora
        if self.register_as and (self.kind == "external" or lora.rank):
            result = "an adapter" if lora.rank else "written elsewhere"
            problems.append(("register_as", f"needs a model, and the result is {result}. Leave it empty."))
        if lora.path and lora.rank == 0:
            problems.append(
                ("model.lora.rank", "0 trains all weights, without an adapter. Use the rank of lora.path's.")
            )
        if lora.rank and self.trainer.tensor_parallel > 1:
            fix = "Set it to 1: ranks of the data dimension shard the frozen weights too."
            problems.append(
                ("trainer.tensor_parallel", f"cannot split the layers of adapters (model.lora.rank). {fix}")
            )
        if heads := sorted(set(lora.target_modules) & {"embed_tokens", "lm_head"}):
            fix = "Inference servers load adapters of linear layers inside the decoder only."
            problems.append(("model.lora.target_modules", f"cannot hold {', '.join(heads)}. {fix}"))
        return problems

    def _sft_problems(self) -> list[tuple[str, str]]:
        problems = []
        if self.data is None:
            problems.append(("data.path", "is required for an SFT run: name a JSONL or Parquet file of examples."))
        elif self.data.trains_on_solutions and not self.environments:
            problems.append(("data.solutions", "are those of environments, and `environments` is empty. Name one."))
        if self.evaluation is not None:
            problems += self._play_problems("an SFT run is evaluated on the problems of at least one environment")
            if self.inference.replicas == 0:
                fix = "Use at least 1, or leave the section evaluation out."
                problems.append(("inference.replicas", f"0 leaves nobody to play the evaluation. {fix}"))
        return problems

    def _play_problems(self, need: str) -> list[tuple[str, str]]:
        """What keeps episodes from being played."""
        problems, sampling = [], self.sampling
        if not self.environments:
            problems.append(("environments", f"is empty: {need}."))
        names = [environment.run_name for environment in self.environments]
        for name in sorted({name for name in names if names.count(name) > 1}):
            problems.append(("environments", f"names {name!r} twice. Keep one and set its weight, or set a label."))
        if sampling.max_tokens >= self.inference.max_model_len:
            limit = f"inference.max_model_len ({self.inference.max_model_len})"
            fix = "Raise that or lower this."
            problems.append(
                ("sampling.max_tokens", f"{sampling.max_tokens} leaves no room for a prompt in {limit}. {fix}")
            )
        return problems

    def _rl_problems(self) -> list[tuple[str, str]]:
        problems = self._play_problems("an RL run needs at least one environment")
        sampling = self.sampling
        if self.data is not None:
            problems.append(("data", "belongs to SFT runs. Remove it or set kind to 'sft'."))
        method = self.algorithm.advantage_method
        if sampling.group_size == 1 and method != "none":
            reason = f"leaves the advantage {method!r} nothing to compare a rollout with"
            problems.append(("sampling.group_size", f"1 {reason}. Use at least 2, or the advantage 'none'."))
        if self.batch.token_batch_size is None and self.batch.batch_size % sampling.group_size:
            lower = self.batch.batch_size // sampling.group_size * sampling.group_size
            fix = f"Use {lower or sampling.group_size} or {lower + sampling.group_size}."
            size = f"{self.batch.batch_size} is not a multiple of sampling.group_size ({sampling.group_size})"
            problems.append(("batch.batch_size", f"{size}. {fix}"))
        if sampling.max_tokens >= self.trainer.seq_len:
            fix = f"Use more than sampling.max_tokens ({sampling.max_tokens}) plus the longest prompt."
            problems.append(("trainer.seq_len", f"{self.trainer.seq_len} would cut rollouts short. {fix}"))
        return problems
