"""The two kinds of supervised training: imitate examples, or prefer one answer of a pair to the other.

                 lines of data                    one optimizer step                        held-out examples
    Imitation    a sequence each, or one per turn cross-entropy per trained token           the same, no gradient
    Preference   two sequences each, one answer   logprobs of whole answers under the       the same, no gradient
                 behind the other                 policy and where it began -> DPO

Both mean over the whole batch, however it is spread over ranks. Shapes: P pairs, S sequences.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import date

import numpy as np
from transformers import PreTrainedModel

from trainers.data.dataset import Line
from trainers.data.examples import parse_example, parse_pair
from trainers.data.rendering import Renderer
from trainers.distributed.mesh import World
from trainers.errors import DataError
from trainers.learner import Learner
from trainers.losses.dpo import Preferences, preferences, push_loss
from trainers.model.policy import load_policy
from trainers.model.scoring import sequence_logprobs
from trainers.objective.step import SUPERVISED, Objective
from trainers.packing import TrainingSequence, count_trained
from trainers.run_config import RunConfig
from trainers.run_config.data import DataConfig, PreferenceConfig

PUSHED = Objective(push_loss)
"""What preference training hands the learner."""


class Supervision(ABC):
    """What is done with lines of data. `train_step` and `validate` are collective; `today` is the same on all ranks."""

    def __init__(self, learner: Learner, config: DataConfig, world: World, today: date) -> None:
        self._learner = learner
        self._config = config
        self._world = world
        self._seq_len = learner.config.trainer.seq_len
        self._renderer = Renderer(learner.tokenizer, config, self._seq_len, today)

    @abstractmethod
    def train_step(self, lines: Sequence[Line]) -> dict[str, float]:
        """Take one optimizer step; returns its metrics."""

    @abstractmethod
    def _render(self, lines: Sequence[Line]) -> list[TrainingSequence]:
        """What of the lines is not too long."""

    @abstractmethod
    def _measure(self, lines: Sequence[Line]) -> tuple[dict[str, float], int]:
        """Sums over examples without gradient, the loss among them, and what to divide them by."""

    def _sequences(self, lines: Sequence[Line]) -> list[TrainingSequence]:
        """The lines of a step as sequences, of which there are some. Raises DataError."""
        with self._learner.timed("render"):
            sequences = self._render(lines)
        if not sequences:
            raise self._nothing_fits(f"of the {len(lines)} examples of step {self._learner.step}")
        return sequences

    def _nothing_fits(self, which: str) -> DataError:
        fix = "Raise it, or let examples be cut (data.too_long)"
        return DataError(f"trainer.seq_len: {which} none has anything to learn within {self._seq_len} tokens. {fix}.")

    def _logprobs(self, model: PreTrainedModel, sequences: Sequence[TrainingSequence]) -> np.ndarray:
        return sequence_logprobs(model, sequences, self._seq_len, self._world, self._learner.dtype)

    def validate(self, chunks: Iterable[Sequence[Line]]) -> dict[str, float]:
        """Means over all examples of all chunks, and how many were too long; only one chunk at a time is in memory.

        Raises DataError when there is nothing to take a mean of.
        """
        totals: Counter[str] = Counter()
        count = 0
        with self._learner.timed("validation"):
            for lines in chunks:
                sums, size = self._measure(lines)
                totals.update(sums)
                count += size
        if not count:
            raise self._nothing_fits("of the held-out examples")
        means = {_area(name): total / count for name, total in totals.items()}
        return {f"{name}/validation": value for name, value in (means | self._renderer.take_counts()).items()}


class Imitation(Supervision):
    """Cross-entropy of the trained tokens."""

    def train_step(self, lines: Sequence[Line]) -> dict[str, float]:
        return self._learner.train_step(self._sequences(lines), SUPERVISED) | self._renderer.take_counts()

    def _measure(self, lines: Sequence[Line]) -> tuple[dict[str, float], int]:
        sequences = self._render(lines)
        logprobs_S = self._logprobs(self._learner.model, sequences)
        return {"loss": -float(logprobs_S.sum())}, count_trained(sequences)

    def _render(self, lines: Sequence[Line]) -> list[TrainingSequence]:
        examples = [(parse_example(line, where, self._config.roles), where) for line, where in lines]
        return [sequence for example, where in examples for sequence in self._renderer.render(example, where)]


class Preference(Supervision):
    """DPO against a frozen copy of the policy that the run started from, also when it goes on from a checkpoint."""

    def __init__(
        self, learner: Learner, config: DataConfig, world: World, today: date, preference: PreferenceConfig
    ) -> None:
        super().__init__(learner, config, world, today)
        self._beta = preference.beta
        self._reference = load_policy(learner.start, world, learner.config.trainer).requires_grad_(False)

    def train_step(self, lines: Sequence[Line]) -> dict[str, float]:
        sequences = self._sequences(lines)
        with self._learner.timed("compare"):
            seen = self._compare(sequences)
        signed_S = np.stack([seen.weights_P, -seen.weights_P], axis=1).ravel()
        # The weights hold DPO's denominator; the mean over tokens, which every objective takes, is undone.
        signed_S *= count_trained(sequences)
        pushed = [replace(each, advantage=float(weight)) for each, weight in zip(sequences, signed_S, strict=True)]
        metrics = self._learner.train_step(pushed, PUSHED)
        metrics |= {f"{_area(name)}/mean": total / len(seen.losses_P) for name, total in seen.sums().items()}
        return metrics | self._renderer.take_counts()

    def _measure(self, lines: Sequence[Line]) -> tuple[dict[str, float], int]:
        seen = self._compare(self._render(lines))
        return seen.sums(), len(seen.losses_P)

    def _compare(self, sequences: Sequence[TrainingSequence]) -> Preferences:
        """Loss and weights of pairs: the chosen answer of each at 2p, the rejected one at 2p + 1."""
        policy_S, ref_S = (self._logprobs(model, sequences) for model in (self._learner.model, self._reference))
        return preferences(policy_S[::2], policy_S[1::2], ref_S[::2], ref_S[1::2], self._beta)

    def _render(self, lines: Sequence[Line]) -> list[TrainingSequence]:
        sequences: list[TrainingSequence] = []
        for line, where in lines:
            pair = parse_pair(line, where, self._config.roles)
            chosen = self._renderer.render(pair.chosen, f"{where}: chosen")
            rejected = self._renderer.render(pair.rejected, f"{where}: rejected")
            if chosen and rejected:
                sequences += [*chosen, *rejected]
        return sequences


def make_supervision(learner: Learner, config: RunConfig, world: World, today: date) -> Supervision:
    """What the config asks for; `today` is for chat templates."""
    assert config.data is not None, "the config refuses SFT runs without data"
    if config.data.preference is not None:
        return Preference(learner, config.data, world, today, config.data.preference)
    return Imitation(learner, config.data, world, today)


def _area(name: str) -> str:
    return name if name == "loss" else f"preference/{name}"
