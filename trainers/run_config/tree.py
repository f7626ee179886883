"""The whole tree, and what its sections must agree on."""

from math import lcm
from operator import itemgetter
from typing import Any, Literal, Self

from pydantic import Field, ValidationInfo, model_validator

from environments import registry
from trainers.run_config.algorithm import AlgorithmConfig
from trainers.run_config.data import DataConfig
from trainers.run_config.model import ModelConfig
from trainers.run_config.policies import PolicyRef
from trainers.run_config.review import ReviewConfig
from trainers.run_config.sampling import BatchConfig, EnvironmentRef, SamplingConfig
from trainers.run_config.section import STORED, ConfigProblem, CrossFieldError, Section, is_stored
from trainers.run_config.serving import EvaluationConfig, InferenceConfig, LauncherConfig, WorkersConfig
from trainers.run_config.tracking import TrackingConfig
from trainers.run_config.trainer import OptimizerConfig, TrainerConfig


class RunConfig(Section):
    """Everything that defines a run. Never changed after the run is created."""

    kind: Literal["rl", "sft", "external", "eval"] = "rl"
    """`rl` learns from scored rollouts, `sft` from example conversations; an `external` run stores and hands out groups
    for a trainer of your own; an `eval` run trains nothing and measures what `model.path` names."""
    name: str = Field(default="", max_length=64, pattern=r"^([a-z0-9][a-z0-9-]*)?$")
    """Short name: lower-case letters, digits and dashes. Empty: one is made up."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of everything random."""
    max_steps: int = Field(ge=1)
    """Optimizer steps; the run ends with policy version `max_steps`. Of an eval run: the versions that it measures."""
    register_as: str = Field(default="", max_length=64, pattern=r"^([a-z0-9][a-z0-9._-]*)?$")
    """Name under which the last policy version is registered as a model when the run has finished. Empty: it is not."""
    model: ModelConfig = ModelConfig()
    environments: list[EnvironmentRef] = []
    """The environments that problems are drawn from. An SFT run needs them only for evaluation."""
    policies: list[PolicyRef] = []
    """Models beside the policy that environments ask by name: a judge, an opponent, a simulated user."""
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

    def environment(self, run_name: str) -> EnvironmentRef | None:
        """An environment by its name in the run; None for one that only submitted groups name."""
        return next((ref for ref in self.environments if ref.run_name == run_name), None)

    def solved_at(self, environment: str) -> float:
        """Reward from which a rollout solved its problem, by the environment's name in the run."""
        ref = self.environment(environment)
        return 1.0 if ref is None else ref.solved_at

    def review_of(self, environment: str) -> ReviewConfig | None:
        """Whether people look at groups of an environment first, by its name in the run, and how."""
        ref = self.environment(environment)
        return None if ref is None else ref.review

    def sampling_of(self, environment: str) -> SamplingConfig:
        """How episodes of an environment are sampled, by its name in the run: as the run's, but for its own values."""
        ref = self.environment(environment)
        return self.sampling if ref is None else ref.sampling(self.sampling)

    @property
    def measured(self) -> frozenset[str]:
        """Environments that evaluations are of, by their names in the run: none whose rewards measure no policy."""
        of_all = self.evaluation is None or not self.evaluation.measures
        return frozenset(
            each.run_name for each in self.environments if of_all or not registry.unmeasured(each.name, each.args)
        )

    def algorithm_of(self, environment: str) -> AlgorithmConfig:
        """What groups of an environment are trained by, by its name in the run: its own advantage is in it."""
        ref = self.environment(environment)
        return self.algorithm if ref is None else ref.algorithm(self.algorithm)

    @property
    def is_played(self) -> bool:
        """Whether episodes are played on inference servers of the run: to train on them, or only to evaluate."""
        return self.kind in {"rl", "eval"} or (self.kind == "sft" and self.evaluation is not None)

    @property
    def has_players(self) -> bool:
        """Whether somebody of ours, or an endpoint, plays what is played."""
        return self.inference.replicas > 0 or bool(self.model.endpoint)

    @property
    def is_trained(self) -> bool:
        """Whether a trainer of ours takes part."""
        return self.kind in {"rl", "sft"}

    @property
    def needs_inference_logprobs(self) -> bool:
        """Whether a trainer of ours would take a missing inference logprob for a probability of 1."""
        return self.kind == "rl" and self.algorithm.reads_inference_logprobs

    @property
    def fruitless_limit(self) -> int:
        """Groups of no use in a row after which a run ends; 0: it never does."""
        if self.batch.max_fruitless_groups is not None:
            return self.batch.max_fruitless_groups
        return 1_000 if self.batch.token_batch_size else 10 * self.batch.batch_size // self.smallest_group

    @property
    def group_rollouts(self) -> dict[str, int]:
        """Rollouts of a training group of each environment, by its name in the run."""
        return {ref.run_name: ref.sampling(self.sampling).group_size * len(ref.own_seats) for ref in self.environments}

    @property
    def smallest_group(self) -> int:
        """Of these; where nothing is played, as many rollouts as episodes would leave."""
        return min(self.group_rollouts.values(), default=self.sampling.group_size)

    @property
    def episode_tokens(self) -> int:
        """Most tokens that the policy may write in an episode of any environment."""
        each = [ref.sampling(self.sampling) for ref in self.environments] or [self.sampling]
        return max(sampling.max_tokens * sampling.max_turns for sampling in each)

    @property
    def frozen(self) -> dict[str, PolicyRef]:
        """Those of `policies` that servers of the run serve and nobody changes, by their keys: `policies.0`."""
        return {f"policies.{index}": policy for index, policy in enumerate(self.policies) if policy.model}

    @classmethod
    def stored(cls, values: Any) -> Self:
        """The config of a run, which was checked when the run was made. What has been forbidden since is no fault of
        it: a run of last year can still be read, and a trainer that is restarted goes on."""
        return cls.model_validate(values, context=STORED)

    @model_validator(mode="after")
    def _refuse_contradictions(self, info: ValidationInfo) -> Self:
        if is_stored(info):
            return self
        of_kind = {
            "rl": self._rl_problems,
            "sft": self._sft_problems,
            "external": list,
            "eval": self._eval_problems,
        }[self.kind]
        problems = [
            *self.optimizer.problems(self.max_steps),
            *self.trainer.problems(),
            *self._launcher_problems(),
            *self._queue_problems(),
            *self._evaluation_problems(),
            *self._model_problems(),
            *self._policy_problems(),
            *of_kind(),
        ]
        if problems:
            raise CrossFieldError([ConfigProblem(path, message) for path, message in problems])
        return self

    def _launcher_problems(self) -> list[tuple[str, str]]:
        if self.trainer.nodes == 1 or self.launcher.type == "slurm" or self.kind == "external":
            return []
        fix = "Set launcher.type to 'slurm', or leave it at 1."
        return [("trainer.nodes", f"{self.trainer.nodes} are more than this machine. {fix}")]

    def _queue_problems(self) -> list[tuple[str, str]]:
        batch = self.batch
        if (
            self.kind not in ("rl", "external")
            or batch.token_batch_size
            or batch.max_queued_rollouts >= batch.batch_size
        ):
            return []
        fix = f"Use at least batch.batch_size ({batch.batch_size})."
        few = f"{batch.max_queued_rollouts} would be full before a batch is"
        return [("batch.max_queued_rollouts", f"{few}: what it still needs would be refused. {fix}")]

    def _evaluation_problems(self) -> list[tuple[str, str]]:
        if self.evaluation is None or self.evaluation.problems or self.kind == "eval":
            return []
        return [("evaluation.problems", "0 evaluates nothing. Use at least 1, or leave the section evaluation out.")]

    def _model_problems(self) -> list[tuple[str, str]]:
        problems = []
        if self.kind != "external" and not (self.model.path or self.model.endpoint):
            problems.append(
                ("model.path", "is required: a registered model, an absolute directory, RUN@STEP or a name of the hub.")
            )
        if self.model.endpoint and self.kind != "eval":
            problems.append(("model.endpoint", "has no weights to train. Set kind to 'eval', or name a model.path."))
        elif self.model.endpoint and self.model.path:
            problems.append(("model.path", "and model.endpoint both say who plays. Leave one of them empty."))
        lora = self.model.lora
        if self.register_as and (not self.is_trained or lora.rank):
            result = "an adapter" if lora.rank else "written elsewhere" if self.kind == "external" else "figures"
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

    def _policy_problems(self) -> list[tuple[str, str]]:
        problems = []
        for index, policy in enumerate(self.policies):
            at = f"policies.{index}"
            if policy.model and policy.endpoint:
                problems.append((f"{at}.model", "and endpoint both say who answers. Leave one of them out."))
            elif not (policy.model or policy.endpoint):
                fix = "Name a model that the run serves, or an endpoint that an administrator added."
                problems.append((f"{at}.model", f"or endpoint has to say who answers as {policy.name!r}. {fix}"))
            elif policy.endpoint and policy.replicas > 1:
                problems.append((f"{at}.replicas", "counts servers of a model, and an endpoint answers. Leave it out."))
            elif policy.is_start and self.model.endpoint:
                problems.append((f"{at}.model", "'start' is what the run starts from: an endpoint here. Name a model."))
        return problems

    def _sft_problems(self) -> list[tuple[str, str]]:
        problems = []
        if self.data is None:
            problems.append(("data.path", "is required for an SFT run: name a JSONL or Parquet file of examples."))
        elif self.data.trains_on_solutions and not self.environments:
            problems.append(("data.solutions", "are those of environments, and `environments` is empty. Name one."))
        if self.evaluation is not None:
            problems += self._play_problems("an SFT run is evaluated on the problems of at least one environment")
            if not self.has_players:
                fix = "Use at least 1, or leave the section evaluation out."
                problems.append(("inference.replicas", f"0 leaves nobody to play the evaluation. {fix}"))
        return problems

    def _eval_problems(self) -> list[tuple[str, str]]:
        problems = self._play_problems("an eval run plays the problems of at least one environment")
        if self.evaluation is None:
            problems.append(("evaluation", "is required for an eval run: say how many problems are played."))
        if self.data is not None:
            problems.append(("data", "belongs to SFT runs. Remove it or set kind to 'sft'."))
        if self.model.lora.rank or self.model.lora.path:
            problems.append(("model.lora", "belongs to runs that train: RUN@STEP of a LoRA run is its merged model."))
        if self.model.endpoint and self.inference.replicas:
            problems.append(("inference.replicas", "start servers, and an endpoint plays (model.endpoint). Use 0."))
        elif not self.has_players:
            problems.append(("inference.replicas", "0 leaves nobody to play the evaluation. Use at least 1."))
        return problems

    def _play_problems(self, need: str) -> list[tuple[str, str]]:
        """What keeps episodes from being played."""
        problems = []
        if not self.environments:
            problems.append(("environments", f"is empty: {need}."))
        names = [environment.run_name for environment in self.environments]
        for name in sorted({name for name in names if names.count(name) > 1}):
            problems.append(("environments", f"names {name!r} twice. Keep one and set its weight, or set a label."))
        others = [policy.name for policy in self.policies]
        for name in sorted({name for name in others if others.count(name) > 1}):
            problems.append(("policies", f"names {name!r} twice. Give each a name of its own."))
        limit = self.inference.max_model_len
        for path, max_tokens in self._max_tokens():
            if max_tokens >= limit and not self.model.endpoint:
                reason = f"{max_tokens} leaves no room for a prompt in inference.max_model_len ({limit})"
                problems.append((path, f"{reason}. Raise that or lower this."))
        return problems

    def _rl_problems(self) -> list[tuple[str, str]]:
        problems = self._play_problems("an RL run needs at least one environment")
        sampling = self.sampling
        if self.data is not None:
            problems.append(("data", "belongs to SFT runs. Remove it or set kind to 'sft'."))
        problems += self._advantage_problems()
        # Whatever the mixture hands out, groups of each environment alone can fill a batch.
        whole = lcm(*self.group_rollouts.values())
        if self.batch.token_batch_size is None and self.environments and self.batch.batch_size % whole:
            lower = self.batch.batch_size // whole * whole
            fix = f"Use {lower} or {lower + whole}." if lower else f"Use {whole}."
            is_plain = whole == sampling.group_size
            parts = "sampling.group_size" if is_plain else "the rollouts of a group of each environment"
            size = f"{self.batch.batch_size} is not a multiple of {parts} ({whole})"
            problems.append(("batch.batch_size", f"{size}. {fix}"))
        path, max_tokens = max(self._max_tokens(), key=itemgetter(1))
        if max_tokens >= self.trainer.seq_len:
            fix = f"Use more than {path} ({max_tokens}) plus the longest prompt."
            problems.append(("trainer.seq_len", f"{self.trainer.seq_len} would cut rollouts short. {fix}"))
        return problems

    def _max_tokens(self) -> list[tuple[str, int]]:
        """Every `max_tokens` that is in force, with its key."""
        own = [(f"environments.{index}.max_tokens", ref.max_tokens) for index, ref in enumerate(self.environments)]
        return [("sampling.max_tokens", self.sampling.max_tokens), *((key, value) for key, value in own if value)]

    def _advantage_problems(self) -> list[tuple[str, str]]:
        """What is wrong with how rollouts of a group are compared, in each environment."""
        problems: dict[str, str] = {}
        if not self.environments:
            problems |= self._lone_problems("sampling.group_size", self.sampling, self.algorithm)
        for index, ref in enumerate(self.environments):
            at = f"environments.{index}"
            path = "sampling.group_size" if ref.group_size is None else f"{at}.group_size"
            problems |= self._lone_problems(path, ref.sampling(self.sampling), ref.algorithm(self.algorithm))
            if ref.advantage == "none" and self.algorithm.filter_zero_advantage:
                reason = "leaves groups of equal rewards a gradient, which algorithm.filter_zero_advantage would drop"
                problems[f"{at}.advantage"] = f"'none' {reason}. Remove that or choose another advantage."
            elif ref.advantage not in {None, "none"} and not self.algorithm.loss.uses_advantages:
                problems[f"{at}.advantage"] = f"plays no part in the loss {self.algorithm.loss.type!r}. Remove it."
        return list(problems.items())

    @staticmethod
    def _lone_problems(path: str, sampling: SamplingConfig, algorithm: AlgorithmConfig) -> dict[str, str]:
        method = algorithm.advantage_method
        if sampling.group_size > 1 or method == "none":
            return {}
        reason = f"leaves the advantage {method!r} nothing to compare a rollout with"
        return {path: f"1 {reason}. Use at least 2, or the advantage 'none'."}
