"""What a model makes of whole sequences: their logprobs, without gradient, spread over all ranks.

Shapes: S sequences of the whole batch, K trained tokens of one micro-batch.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist
from transformers import PreTrainedModel

from trainers.distributed.mesh import World
from trainers.model.pipeline import forward_only
from trainers.packing import TrainingSequence, micro_batch, plan_micro_batches


@torch.no_grad()
def sequence_logprobs(
    model: PreTrainedModel, sequences: Sequence[TrainingSequence], seq_len: int, world: World, dtype: torch.dtype
) -> np.ndarray:
    """Sum of the logprobs of each sequence's trained tokens: float64 [S], on every rank. Collective.

    `dtype` is what the model computes in. Dropout is off meanwhile.
    """
    lengths_S = [len(sequence.token_ids_T) for sequence in sequences]
    sums_S = torch.zeros(len(sequences), dtype=torch.float64)
    was_training = model.training
    model.eval()
    bins = plan_micro_batches(lengths_S, seq_len, world.data_size)[world.data_rank]
    micro_batches = [micro_batch([sequences[index] for index in bin_]) for bin_ in bins]
    scores = forward_only(model, micro_batches, 1.0, world, dtype)
    for bin_, (logprobs_K, _) in zip(bins, scores, strict=world.is_last_stage):
        laid = sorted(bin_, key=lambda index: -lengths_S[index])  # as `micro_batch` lays them: its sort is stable
        parts = torch.split(logprobs_K.double().cpu(), [int(sequences[index].trained_T.sum()) for index in laid])
        for index, part_K in zip(laid, parts, strict=False):  # a dummy has no sequence
            sums_S[index] = part_K.sum()
    model.train(was_training)
    dist.all_reduce(sums_S)  # every sequence is on the scorers of one set of micro-batches, and zero elsewhere
    return sums_S.numpy() / world.scorers
