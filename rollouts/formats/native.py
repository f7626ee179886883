"""Groups and batches as our own API has them: JSON or MessagePack in, MessagePack out."""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from environments.types import PackedScoredGroup, PlayedGroup
from rollouts.formats.arrays import COUNT, LOGPROB, MASK, TOKEN_ID, PackedGroup, branches_of, pack_group, split
from rollouts.models import Batch
from rollouts.sql import binary_cursor, load
from trainers.wire import TrainingBatch, TrainingRollout

_encoder = msgspec.msgpack.Encoder()
_lists = msgspec.json.Decoder(PlayedGroup | list[PlayedGroup])
_packed = msgspec.msgpack.Decoder(PackedScoredGroup | list[PackedScoredGroup])
_packed_lists = msgspec.msgpack.Decoder(PlayedGroup | list[PlayedGroup])


def decode_groups(body: bytes, *, is_msgpack: bool) -> list[PackedGroup]:
    """One group or a list of them, from JSON or MessagePack; an empty JSON body is an empty object.

    Raises msgspec's errors for what is neither, Invalid for arrays that cannot be packed.
    """
    groups: Any
    if is_msgpack:
        try:
            groups = _packed.decode(body)
        except msgspec.ValidationError:
            groups = _packed_lists.decode(body)
    else:
        groups = _lists.decode(body or b"{}")
    if not isinstance(groups, list):
        groups = [groups]
    return [pack_group(group, ("groups", at)) for at, group in enumerate(groups)]


def encode_batch(batch: Batch) -> bytes:
    """The MessagePack of a TrainingBatch, groups in the order of their positions. One query whatever it holds."""
    with binary_cursor() as cursor:
        cursor.execute(load("batch_body"), {"batch_id": batch.pk})
        rollouts = [rollout for row in cursor.fetchall() for rollout in _rollouts(row)]
    temperature = batch.run.parsed.sampling.temperature
    return _encoder.encode(
        TrainingBatch(run=batch.run.key, step=batch.step, temperature=temperature, rollouts=rollouts)
    )


def _rollouts(row: tuple[Any, ...]) -> Iterator[TrainingRollout]:
    """Those of a group that train: scored, and with a token that the policy sampled."""
    key, environment, problem_key, group_version, advantages, lengths, *arrays = row[:11]
    branch_lengths, rewards, trained, *versions = row[11:]
    counts = np.frombuffer(lengths, COUNT).tolist()
    sizes = [dtype.itemsize for dtype in (TOKEN_ID, MASK, LOGPROB, LOGPROB, LOGPROB)]
    parts = [
        [None] * len(counts) if data is None else list(split(data, counts, size))
        for data, size in zip(arrays, sizes, strict=True)
    ]
    branches = branches_of(counts, branch_lengths)
    for index, advantage in enumerate(advantages):
        if advantage is None or not trained[index]:
            continue
        dispatched, first, last = (column[index] for column in versions)
        oldest = min((version for version in (dispatched, first) if version is not None), default=group_version or 0)
        token_ids, loss_mask, inference_logprobs, ref_logprobs, token_advantages = (part[index] for part in parts)
        yield TrainingRollout(
            group=key,
            index=index,
            environment=environment,
            problem_key=problem_key,
            token_ids=token_ids,  # type: ignore[arg-type]  # a view on the bytes, which is encoded alike
            loss_mask=loss_mask,  # type: ignore[arg-type]
            inference_logprobs=inference_logprobs,  # type: ignore[arg-type]
            advantage=advantage,
            reward=rewards[index],
            min_policy_version=oldest,
            max_policy_version=max(oldest, last or 0),
            ref_logprobs=ref_logprobs,  # type: ignore[arg-type]
            advantages=token_advantages,  # type: ignore[arg-type]
            branch_lengths=branches[index] if len(branches[index]) > 1 else [],
        )
