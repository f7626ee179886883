"""What a token weighs in the loss: one over a denominator of the whole batch.

    token           1 / N                     N tokens of the batch
    sequence_mean   1 / (S L)                 S rollouts, L tokens of this one
    sequence_sum    1 / S                     the rollout is one action (arXiv:2402.14740)
    group           1 / (P M)                 P groups, M tokens of this one
    constant        1 / (S C)                 C a constant length (arXiv:2503.20783)

Only trained tokens count, and only rollouts and groups that have some. A branch weighs what its tokens weigh: S counts
rollouts and L the tokens of all branches of one, so a rollout weighs the same into however many branches it parted.
Every rank holds the whole batch and computes the same weights, so the sum over all micro-batches of all ranks is the
loss of the batch; nothing is divided by anything local. Shapes: B sequences of the batch.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from trainers.packing import RolloutKey, TokenWeights, TrainingSequence
from trainers.run_config import Normaliser


def token_weights(
    lengths_B: Sequence[int],
    rollouts_B: Sequence[RolloutKey],
    normaliser: Normaliser,
    constant_length: int | None = None,
) -> list[float]:
    """The weight of one token of each sequence; 0 for a sequence of length 0. `constant` needs its length."""
    of_rollout: Counter[RolloutKey] = Counter()
    of_group: Counter[str] = Counter()
    for length, rollout in zip(lengths_B, rollouts_B, strict=True):
        of_rollout[rollout] += length
        of_group[rollout[0]] += length
    tokens = of_rollout.total()
    rollouts, groups = (sum(length > 0 for length in counts.values()) for counts in (of_rollout, of_group))
    if normaliser == "constant" and constant_length is None:
        raise ValueError("the normaliser 'constant' needs a length")

    def denominator(rollout: RolloutKey) -> int:
        match normaliser:
            case "token":
                return tokens
            case "sequence_mean":
                return rollouts * of_rollout[rollout]
            case "sequence_sum":
                return rollouts
            case "group":
                return groups * of_group[rollout[0]]
            case "constant":
                return rollouts * (constant_length or 1)

    return [1 / denominator(rollout) if length else 0.0 for length, rollout in zip(lengths_B, rollouts_B, strict=True)]


def weigh(
    sequences: Sequence[TrainingSequence], normaliser: Normaliser, constant_length: int | None = None
) -> list[TrainingSequence]:
    """Give every sequence its weights in the loss and in each term of the objective, by what the term is about.

    The terms on reference logprobs are normalised like the loss, over the sequences that have such logprobs; echo is a
    mean over its own tokens.
    """
    rollouts_B = [sequence.rollout for sequence in sequences]
    trained_B = [int(sequence.trained_T.sum()) for sequence in sequences]
    with_reference_B = [
        0 if sequence.ref_logprobs_T is None else trained
        for sequence, trained in zip(sequences, trained_B, strict=True)
    ]
    echo_B = [0 if sequence.echo_T is None else int(sequence.echo_T.sum()) for sequence in sequences]
    columns = zip(
        token_weights(trained_B, rollouts_B, normaliser, constant_length),
        token_weights(with_reference_B, rollouts_B, normaliser, constant_length),
        token_weights(echo_B, rollouts_B, "token"),
        strict=True,
    )
    return [
        replace(sequence, weights=TokenWeights(*weights)) for sequence, weights in zip(sequences, columns, strict=True)
    ]
