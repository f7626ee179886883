"""Packed token arrays: little-endian, so that every reader takes a zero-copy view on the same bytes."""

from collections.abc import Sequence

import numpy as np

TOKEN_ID = np.dtype("<u4")
MASK = np.dtype("u1")
LOGPROB = np.dtype("<f4")


def pack_ids(token_ids: Sequence[int]) -> bytes:
    return np.asarray(token_ids, dtype=TOKEN_ID).tobytes()


def pack_mask(loss_mask: Sequence[int]) -> bytes:
    return np.asarray(loss_mask, dtype=MASK).tobytes()


def pack_logprobs(logprobs: Sequence[float]) -> bytes:
    return np.asarray(logprobs, dtype=LOGPROB).tobytes()
