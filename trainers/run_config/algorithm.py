"""Advantages, objective, corrections, and how far training may run ahead of generation."""

from typing import Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from trainers.run_config.losses import (
    AdvantageMethod,
    AipoLoss,
    CrossEntropyLoss,
    CustomLoss,
    DistillLoss,
    GrpoLoss,
    LossConfig,
    OpoLoss,
    RlooLoss,
)
from trainers.run_config.section import ConfigProblem, CrossFieldError, Section, is_stored


class CorrectionsConfig(Section):
    """What is done about tokens that the trainer and the inference engine see differently. All compare the trainer at
    the start of the step with the engine; a dropped token stays in the denominator of the loss."""

    token_cap: float | None = Field(default=None, gt=0)
    """Multiply a token's loss by its likelihood under the trainer over that under the engine, at most this."""
    sequence_cap: float | None = Field(default=None, gt=0)
    """The same with the product of these quotients over the rollout."""
    geometric_low: float | None = Field(default=None, ge=0, lt=1)
    """Drop rollouts whose quotients have a lower geometric mean."""
    geometric_high: float | None = Field(default=None, gt=1)
    """Drop rollouts whose quotients have a higher geometric mean."""
    max_divergence: float | None = Field(default=None, gt=0)
    """Drop rollouts in which the logprob of any token differs by more than this."""
    mask_overlong: bool = False
    """Do not train on rollouts that were cut off at a token limit, nor count their tokens; their rewards stay in the
    statistics of the group."""

    @property
    def compare_with_engine(self) -> bool:
        """Whether any of them looks at what the engine reported."""
        bounds = (self.token_cap, self.sequence_cap, self.geometric_low, self.geometric_high, self.max_divergence)
        return any(bound is not None for bound in bounds)


class TermsConfig(Section):
    """What is added to the loss, each with a weight; 0 leaves it out. A term is normalised over the tokens it is
    about."""

    echo: float = Field(default=0.0, ge=0)
    """Cross-entropy of what the environment says after the policy's first word: tool results, answers of users."""
    reference_kl: float = Field(default=0.0, ge=0)
    """KL divergence to the reference logprobs that came with the rollouts; every rollout must have them."""
    distillation: float = Field(default=0.0, ge=0)
    """On-policy distillation towards the reference logprobs, on the rollouts that have them."""


class FiltersConfig(Section):
    """Which groups are dropped once they are scored. They count towards no batch, so that others are played in their
    place. What solves a problem is said by `environments[].solved_at`."""

    all_solved: bool = False
    """Drop groups all of whose rollouts solved the problem."""
    none_solved: bool = False
    """Drop groups none of whose rollouts solved the problem."""
    min_reward_range: float = Field(default=0.0, ge=0)
    """Drop groups whose best and worst reward are nearer to each other than this."""


class AlgorithmConfig(Section):
    """Advantages, loss, and how far training may run ahead of generation."""

    loss: LossConfig = GrpoLoss()
    """The objective, by its `type`, with its settings."""
    advantage: Literal["auto", AdvantageMethod] = "auto"
    """How rewards of a group become advantages. `auto`: what the loss is meant to go with. `mean` centres them,
    `mean_std` also divides by their deviation, `max_rl` by their mean, `leave_one_out` compares with the mean of the
    others, `length_weighted` weighs the mean by tokens, `none` takes the reward itself."""
    std_epsilon: float = Field(default=1e-6, ge=0)
    """Added to the deviation before dividing."""
    std_ddof: int = Field(default=0, ge=0, le=1)
    """0: the deviation of the group as it is; 1: the estimate for all rollouts of the problem."""
    constant_length: int | None = Field(default=None, ge=1)
    """Tokens that the normaliser `constant` divides by; without a number all that a rollout of any environment may
    generate: the largest `max_tokens` times `max_turns`."""
    ratio_against: Literal["inference", "old"] = "inference"
    """Denominator of the ratios in the loss. `inference`: what the engine reported when it sampled. `old`: the trainer
    at the start of the step, so that differences between engine and trainer are left to the corrections."""
    corrections: CorrectionsConfig = CorrectionsConfig()
    """What is done about tokens that trainer and inference engine see differently."""
    terms: TermsConfig = TermsConfig()
    """What is added to the loss."""
    max_off_policy_steps: int = Field(default=8, ge=0)
    """Groups whose oldest token is more steps old than this are dropped as stale."""
    max_async_level: int = Field(default=2, ge=0)
    """Steps that generation may run ahead of the live policy version, no more than `max_off_policy_steps`. 0 is fully
    synchronous."""
    strict_async_level: bool = False
    """Publish new weights only between groups, so that every batch has exactly the lag of the async level."""
    filter_zero_advantage: bool = False
    """Drop groups without a gradient: their rewards are all equal, or all advantages that the environment sent per
    token are 0, and no term acts on them."""

    filters: FiltersConfig = FiltersConfig()
    """Which groups are dropped once they are scored."""

    @property
    def steps_ahead(self) -> int:
        """What `max_async_level` comes to: what is generated further ahead would be dropped as stale."""
        return min(self.max_async_level, self.max_off_policy_steps)

    @property
    def advantage_method(self) -> AdvantageMethod:
        """What `advantage` comes to: the only place that knows the loss's own."""
        return self.loss.default_advantage if self.advantage == "auto" else self.advantage

    def gradient_without_advantage(self, *, has_reference: bool = True, has_echo: bool = True) -> str:
        """The key, below `algorithm`, that trains on a group whose advantages are all 0; empty: it has no gradient.

        The only place that knows. Advantages multiply everything but a loss that ignores them, a penalty inside a loss,
        and the terms; corrections are factors of the loss, and normalisers divide, so neither adds a gradient.
        `has_reference`, `has_echo`: whether the group has reference logprobs, and tokens that the environment said
        after the policy's first. `reference_kl` refuses a batch that lacks some, which is not for us to hide.
        """
        if key := self.loss.gradient_without_advantage:
            return key
        if self.terms.reference_kl:
            return "terms.reference_kl"
        if self.terms.distillation and has_reference:
            return "terms.distillation"
        return "terms.echo" if self.terms.echo and has_echo else ""

    @property
    def reads_inference_logprobs(self) -> bool:
        """Whether what a token costs depends on the logprob that the engine reported for it. A custom loss may."""
        loss = self.loss
        if self.corrections.compare_with_engine or isinstance(loss, CustomLoss):
            return True
        is_plain = isinstance(loss, CrossEntropyLoss) or (isinstance(loss, DistillLoss) and loss.ratio == "none")
        return self.ratio_against == "inference" and (not is_plain or self.terms.distillation > 0)

    @field_validator("loss", mode="before")
    @classmethod
    def _without_type_it_is_grpo(cls, value: Any) -> Any:
        return {"type": "grpo"} | value if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _refuse_contradictions(self, info: ValidationInfo) -> Self:
        if is_stored(info):
            return self
        problems = [*self._advantage_problems(), *self._correction_problems(), *self._loss_problems()]
        if problems:
            raise CrossFieldError([ConfigProblem(path, message) for path, message in problems])
        return self

    def _advantage_problems(self) -> list[tuple[str, str]]:
        problems = []
        if not self.loss.uses_advantages and self.advantage_method != "none":
            problems.append(("advantage", f"plays no part in the loss {self.loss.type!r}. Set it to 'auto'."))
        if self.filter_zero_advantage:
            problems += self._filter_problems()
        return problems

    def _filter_problems(self) -> list[tuple[str, str]]:
        key = self.gradient_without_advantage(has_reference=False, has_echo=False)
        if key:
            reason = f"would find nothing to drop: algorithm.{key} gives every group a gradient"
            fix = "choose another loss" if key == "loss.type" else f"set algorithm.{key} to 0"
            return [("filter_zero_advantage", f"{reason}. Remove it, or {fix}.")]
        if self.advantage_method == "none":
            reason = "would drop groups that do carry a gradient: without a baseline equal rewards are not zero"
            return [("filter_zero_advantage", f"{reason}. Remove it or choose another advantage.")]
        return []

    def _correction_problems(self) -> list[tuple[str, str]]:
        corrections, problems = self.corrections, []
        for key in ("token_cap", "sequence_cap"):
            if getattr(corrections, key) is not None and self.ratio_against == "inference":
                reason = "would correct twice: ratios against 'inference' contain the quotient already"
                problems.append((f"corrections.{key}", f"{reason}. Remove it or set algorithm.ratio_against to 'old'."))
        if corrections.token_cap is not None and corrections.sequence_cap is not None:
            problems.append(("corrections.sequence_cap", "and token_cap correct for the same thing. Keep one."))
        return problems

    def _loss_problems(self) -> list[tuple[str, str]]:
        loss, problems = self.loss, []
        if loss.is_bounded_by_engine and self.ratio_against == "old":
            reason = f"leaves the loss {loss.type!r} without bounds: the ratio is 1 before the step"
            problems.append(("ratio_against", f"'old' {reason}. Use 'inference', or another loss with corrections."))
        if isinstance(loss, AipoLoss | OpoLoss | RlooLoss | DistillLoss) and loss.delta < 1:
            reason = "binds before anything has moved, because ratios begin at 1: with 'clamp' nothing is learned"
            problems.append(("loss.delta", f"{loss.delta:g} {reason}. Use at least 1, such as 8."))
        if loss.type == "distill" and self.terms.distillation:
            problems.append(("terms.distillation", "repeats the loss 'distill'. Remove it or choose another loss."))
        if self.constant_length is not None and loss.normaliser != "constant":
            fix = "Remove it or set algorithm.loss.normaliser to 'constant'."
            problems.append(("constant_length", f"has no meaning for the normaliser {loss.normaliser!r}. {fix}"))
        return problems
