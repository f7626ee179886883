"""The body of a batch, rebuilt from its rows: the same bytes every time, whoever asks and whenever."""

from rollouts.formats import native
from rollouts.formats.atropos import encoding
from rollouts.models import Batch, BatchEncoding

_ENCODERS = {
    BatchEncoding.MSGPACK: native.encode_batch,
    BatchEncoding.ATROPOS: encoding.encode_batch,
    BatchEncoding.ATROPOS_DOUBLES: encoding.encode_batch_with_doubles,
}


def encode(batch: Batch) -> bytes:
    """The bytes that ``batch.sha256`` is the hash of. Few queries whatever the batch holds."""
    return _ENCODERS[BatchEncoding(batch.encoding)](batch)
