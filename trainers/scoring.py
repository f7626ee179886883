"""What a model makes of whole sequences: their logprobs, without gradient, spread over all ranks.

Shapes: S sequences of the whole batch, K trained tokens of one micro-batch.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist

from trainers.model import score_tokens
from trainers.packing import TrainingSequence, micro_batch, plan_micro_batches
from trainers.parallel import World


@torch.no_grad()
def sequence_logprobs(
    model: torch.nn.Module, sequences: Sequence[TrainingSequence], seq_len: int, world: World
) -> np.ndarray:
    """Sum of the logprobs of each sequence's trained tokens: float64 [S], on every rank. Collective.

    Dropout is off meanwhile.
    """
    lengths_S = [len(sequence.token_ids_T) for sequence in sequences]
    sums_S = torch.zeros(len(sequences), dtype=torch.float64)
    was_training = model.training
    model.eval()
    for bin_ in plan_micro_batches(lengths_S, seq_len, world.data_size)[world.data_rank]:
        laid = sorted(bin_, key=lambda index: -lengths_S[index])  # as `micro_batch` lays them: its sort is stable
        batch = micro_batch([sequences[index] for index in laid]).to(world.device)
        logprobs_K = score_tokens(model, batch, temperature=1.0).logprobs_K.double().cpu()
        parts = torch.split(logprobs_K, [int(sequences[index].trained_T.sum()) for index in laid])
        for index, part_K in zip(laid, parts, strict=False):  # a dummy has no sequence
            sums_S[index] = part_K.sum()
    model.train(was_training)
    dist.all_reduce(sums_S)  # every sequence is on the ranks of one set of micro-batches, and zero on the others
    return sums_S.numpy() / (world.size // world.data_size)
