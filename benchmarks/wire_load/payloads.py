"""Scored groups as bytes, made before the clock starts; sending one only writes a new number into it.

No two groups on the wire are equal, so no server can profit from, or be confused by, repeated ones: every group holds
a number of STAMP digits (in a score, or in the key) that the client overwrites in place.
"""

import json
import re
import secrets
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from benchmarks.wire_load.connection import Address

STAMP = b"@" * 12
"""What is overwritten by digits. Neither JSON of numbers nor token ids below 2^24 contain it."""
VOCABULARY = 150_000
PROMPT_SHARE = 0.2
_STORED_BLOCK = struct.Struct("<BHH")
_LONGEST_STORED_BLOCK = 0xFFFF


@dataclass(frozen=True)
class Shape:
    """How large groups are and what they carry."""

    group_size: int
    tokens: int
    """Per rollout, the prompt included."""
    logprobs: bool = True

    @property
    def prompt(self) -> int:
        """Leading tokens that the policy did not sample."""
        return int(self.tokens * PROMPT_SHARE)

    @property
    def tokens_per_group(self) -> int:
        return self.group_size * self.tokens

    @property
    def trained_per_group(self) -> int:
        return self.group_size * (self.tokens - self.prompt)


def atropos_group(rng: np.random.Generator, shape: Shape, env_id: int | None = None) -> bytes:
    """JSON of one group as Atropos' own environments write it; the stamp is in the last score, at the end.

    Masks repeat the token id where the policy sampled it and hold -100 elsewhere, where the logprob is 1.0.
    """
    ids = [_ids(rng, shape) for _ in range(shape.group_size)]
    group: dict[str, Any] = {
        "tokens": [row.tolist() for row in ids],
        "masks": [[-100] * shape.prompt + row[shape.prompt :].tolist() for row in ids],
    }
    if shape.logprobs:
        group["inference_logprobs"] = [[1.0] * shape.prompt + _logprobs(rng, shape).tolist() for _ in ids]
    if env_id is not None:
        group["env_id"] = env_id
    scores = "".join(f"{score:.6f}, " for score in rng.random(shape.group_size - 1))
    return json.dumps(group)[:-1].encode() + f', "scores": [{scores}0.{STAMP.decode()}]}}'.encode()


def native_group(rng: np.random.Generator, shape: Shape) -> bytes:
    """MessagePack of one group for the native API, arrays as little-endian binary; the stamp is in its key."""
    padding = np.zeros(shape.prompt, "<f4")
    mask = np.arange(shape.tokens) >= shape.prompt
    return msgspec.msgpack.encode(
        {
            "environment": "bench",
            "problem_key": f"problem-{rng.integers(10**6)}",
            "rollouts": [
                {
                    "token_ids": _ids(rng, shape).astype("<u4").tobytes(),
                    "loss_mask": mask.astype("u1").tobytes(),
                    "inference_logprobs": np.concatenate([padding, _logprobs(rng, shape)]).astype("<f4").tobytes(),
                    "reward": float(rng.random()),
                }
                for _ in range(shape.group_size)
            ],
            "key": secrets.token_hex(8) + STAMP.decode(),
        }
    )


def json_list(groups: list[bytes]) -> bytes:
    """A JSON array of groups."""
    return b"[" + b", ".join(groups) + b"]"


def msgpack_list(groups: list[bytes]) -> bytes:
    """A MessagePack array of groups, at most 65,535."""
    return b"\xdc" + len(groups).to_bytes(2, "big") + b"".join(groups)


class Request:
    """One prepared POST; each of its stamps gets a number of its own whenever it is sent."""

    def __init__(self, address: Address, path: str, headers: dict[str, str], body: bytes) -> None:
        self.groups = body.count(STAMP)
        self.body_bytes = len(body)
        self._wire = bytearray(address.head("POST", path, headers, len(body)) + body)
        self._offsets = [match.start() for match in re.finditer(STAMP, self._wire)]

    def stamped(self, number: int) -> bytes | bytearray:
        """The request with stamps ``number``, ``number`` + 1, ...; overwritten by the next call."""
        for position, offset in enumerate(self._offsets):
            self._wire[offset : offset + len(STAMP)] = b"%012d" % (number + position)
        return self._wire


class GzipRequest:
    """The same with a gzip body that is not compressed again for every number.

    All before the stamp is deflated once; the few bytes from there on follow as a stored block, and the checksum is
    continued over them. One gzip member, as every client sends.
    """

    groups = 1

    def __init__(self, address: Address, path: str, headers: dict[str, str], body: bytes) -> None:
        at = body.index(STAMP)
        self._tail = bytearray(body[at:])
        if len(self._tail) > _LONGEST_STORED_BLOCK or STAMP in self._tail[1:]:
            raise ValueError("a gzip request holds one group with its stamp at the end")
        deflate = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
        deflated = deflate.compress(body[:at]) + deflate.flush(zlib.Z_FULL_FLUSH)
        deflated += _STORED_BLOCK.pack(1, len(self._tail), len(self._tail) ^ _LONGEST_STORED_BLOCK)
        compressed = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff" + deflated
        self._crc = zlib.crc32(body[:at])
        self._size = len(body).to_bytes(4, "little")
        self.body_bytes = len(compressed) + len(self._tail) + 8
        headers = {**headers, "Content-Encoding": "gzip"}
        self._start = address.head("POST", path, headers, self.body_bytes) + compressed

    def stamped(self, number: int) -> bytes:
        """The request with this number in it."""
        self._tail[: len(STAMP)] = b"%012d" % number
        crc = zlib.crc32(self._tail, self._crc)
        return b"".join((self._start, self._tail, crc.to_bytes(4, "little"), self._size))


def _ids(rng: np.random.Generator, shape: Shape) -> "np.ndarray[Any, np.dtype[np.int64]]":
    # Log-uniform: token ids of real text follow Zipf's law, and so do the digits that JSON spends on them.
    return np.floor(VOCABULARY ** rng.random(shape.tokens)).astype(np.int64)


def _logprobs(rng: np.random.Generator, shape: Shape) -> "np.ndarray[Any, np.dtype[np.float32]]":
    """Of the sampled tokens. Engines compute them in 32 bits, which JSON writes with up to 20 characters."""
    return (-rng.exponential(0.5, shape.tokens - shape.prompt)).astype(np.float32)
