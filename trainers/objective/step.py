"""What one optimizer step minimises: a loss, corrected for the mismatch with the engine, and terms beside it.

    total =   sum over trained tokens of   policy weight    x (correction x loss + penalty)  (trainers/losses/<type>.py)
            + sum over trained tokens of   reference weight x reference KL             algorithm.terms.reference_kl
            + sum over trained tokens of   reference weight x distillation             algorithm.terms.distillation
            + sum over echo tokens of      echo weight      x cross-entropy            algorithm.terms.echo

Weights are one over denominators of the whole batch (objective/normalisers.py), each term over the tokens it is about,
so the total of a batch is the sum over its micro-batches and ranks. Corrections are for the loss alone, not for a
penalty that belongs to it (`kl_tau` of `dppo`).

Shapes: K scored tokens of a micro-batch, of which the first are trained by the loss.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch

from trainers.errors import DataError
from trainers.losses import make_loss
from trainers.losses.base import Loss, LossInputs
from trainers.losses.cross_entropy import cross_entropy_loss
from trainers.losses.distill import distillation_losses
from trainers.losses.reference_kl import reference_kl_losses
from trainers.objective.corrections import correction_factors, mismatch_kl
from trainers.objective.normalisers import weigh
from trainers.packing import MicroBatch, TrainingSequence
from trainers.run_config import CorrectionsConfig, CustomLoss, Normaliser, RunConfig, TermsConfig
from trainers.wire import MaskReason


@dataclass(frozen=True)
class Evaluated:
    """Contribution of one micro-batch."""

    loss: torch.Tensor
    """Scalar to minimise; the sum over micro-batches and ranks is the objective of the batch."""
    parts: dict[str, torch.Tensor]
    """Scalars that add up to a value of the batch in the same way, without gradient: the loss, and what terms
    show before their weights."""
    metric_sums: dict[str, torch.Tensor]
    """Sums over the trained tokens, without gradient; to be divided by the trained tokens of the batch."""
    ratio_K: Callable[[], torch.Tensor]
    """The ratio of each trained token as the loss took it, before its bounds; with gradient."""
    marks_K: dict[MaskReason, torch.Tensor]
    """Which trained tokens a bound or a correction caught: other than 0 where it did."""


@dataclass(frozen=True)
class Objective:
    """A loss with everything that goes with it. `prepare` takes the whole batch, a call one micro-batch."""

    loss: Loss
    normaliser: Normaliser = "token"
    constant_length: int | None = None
    ratio_against: Literal["inference", "old"] = "inference"
    corrections: CorrectionsConfig | None = None
    """None where no inference engine is behind the data: supervised training."""
    terms: TermsConfig = field(default_factory=TermsConfig)
    reference_needed_by: str = ""
    """The key of the config that cannot do without reference logprobs."""
    takes_token_advantages: bool = True

    def prepare(self, sequences: Sequence[TrainingSequence]) -> list[TrainingSequence]:
        """Give the sequences of a batch their weights. Raises DataError when they lack what the objective needs."""
        if self.reference_needed_by and any(sequence.ref_logprobs_T is None for sequence in sequences):
            fix = "Use an environment that sends ref_logprobs with every rollout, or remove the key."
            raise DataError(f"{self.reference_needed_by}: a rollout of the batch has no reference logprobs. {fix}")
        if not self.takes_token_advantages and any(sequence.advantages_T is not None for sequence in sequences):
            fix = "Use 'gspo_token', or an environment that does not send advantages."
            raise DataError(f"algorithm.loss.type: 'gspo' takes no advantages per token. {fix}")
        return weigh(sequences, self.normaliser, self.constant_length)

    def __call__(self, batch: MicroBatch, logprobs_K: torch.Tensor) -> Evaluated:
        """Evaluate the scored tokens of one micro-batch; `logprobs_K` has the gradient."""
        trained = batch.trained_tokens
        trainer_logprobs = logprobs_K[:trained]
        inference_logprobs = batch.inference_logprobs_K[:trained]
        inputs = LossInputs(
            trainer_logprobs_K=trainer_logprobs,
            inference_logprobs_K=inference_logprobs,
            # Weights change once per step: the trainer at its start is the trainer now.
            old_logprobs_K=inference_logprobs if self.ratio_against == "inference" else trainer_logprobs.detach(),
            advantages_K=batch.advantages_K[:trained],
            ref_logprobs_K=batch.ref_logprobs_K[:trained],
            sequence_K=batch.sequence_K[:trained],
            sequences=len(batch.lengths_S),
        )
        output = self.loss(inputs)
        losses, metrics = output.losses_K, dict(output.metrics_K)
        marks = {MaskReason.CLIPPED: metrics["clip_fraction"]} if "clip_fraction" in metrics else {}
        if self.corrections is not None:
            corrected = correction_factors(inputs, self.corrections)
            losses = losses * corrected.factor_K
            metrics |= corrected.metrics_K | {"mismatch_kl": mismatch_kl(inputs)}
            marks |= corrected.marks_K
        if output.penalties_K is not None:
            losses = losses + output.penalties_K
        total = (losses * batch.policy_weights_K[:trained]).sum()
        parts: dict[str, torch.Tensor] = {}
        for term in self._terms(batch, inputs, logprobs_K):
            total = total + term.weight * term.value
            parts[term.name] = term.shown.detach()
        parts["loss"] = total.detach()
        sums = {name: values.sum() for name, values in metrics.items()}
        return Evaluated(total, parts, sums, lambda: inputs.ratio if output.ratio_K is None else output.ratio_K, marks)

    def _terms(self, batch: MicroBatch, inputs: LossInputs, logprobs_K: torch.Tensor) -> list["_Term"]:
        trained = batch.trained_tokens
        weights = batch.reference_weights_K[:trained]
        found = []
        if self.terms.echo:
            value = -(logprobs_K[trained:] * batch.echo_weights_K[trained:]).sum()
            found.append(_Term("echo_loss", self.terms.echo, value, value))
        if self.terms.reference_kl:
            value = (reference_kl_losses(inputs) * weights).sum()
            found.append(_Term("reference_kl", self.terms.reference_kl, value, value))
        if self.terms.distillation:
            output = distillation_losses(inputs)
            shown = (output.metrics_K["distillation_kl"] * weights).sum()
            found.append(_Term("distillation_kl", self.terms.distillation, (output.losses_K * weights).sum(), shown))
        return found


class _Term(NamedTuple):
    """A term that is on: what is minimised, and what people are shown."""

    name: str
    weight: float
    value: torch.Tensor
    shown: torch.Tensor


SUPERVISED = Objective(cross_entropy_loss)
"""Mean cross-entropy of the trained tokens."""


def rl_objective(config: RunConfig) -> Objective:
    """The objective that a run's config asks for."""
    algorithm = config.algorithm
    loss = algorithm.loss
    reference_needed_by = ""
    if loss.type == "distill":
        reference_needed_by = "algorithm.loss.type"
    elif isinstance(loss, CustomLoss) and loss.needs_reference:
        reference_needed_by = "algorithm.loss.needs_reference"
    elif algorithm.terms.reference_kl:
        reference_needed_by = "algorithm.terms.reference_kl"
    return Objective(
        loss=make_loss(loss),
        normaliser=loss.normaliser,
        constant_length=algorithm.constant_length or config.episode_tokens,
        ratio_against=algorithm.ratio_against,
        corrections=algorithm.corrections,
        terms=algorithm.terms,
        reference_needed_by=reference_needed_by,
        takes_token_advantages=loss.takes_token_advantages,
    )
