"""Texts that are nearly the same, found by MinHash and locality-sensitive hashing (`datasketch`).

text ─► pieces of 8 characters ─► 128 minima of hashes ─► buckets ─► the estimated share of pieces in common
"""

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rollouts.formats.examples import last_of

LIKE = 0.85
"""Share of pieces that two texts have in common (Jaccard) from which they are nearly the same."""
SHORTEST = 80
"""Characters; shorter texts say so little that many are alike by chance."""
_LONGEST = 8_000
_PIECE = 8
_MINIMA = 128
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True)
class Alike:
    """Texts that are nearly the same as the first of them."""

    positions: list[int]


def find_alike(texts: Iterable[tuple[int, str]]) -> list[Alike]:
    """Which texts, each given with its position, are nearly the same as one before; those of most first.

    About 3 kB of memory for each text that is like none before. Of a text the first 8,000 characters count.
    """
    from datasketch import MinHash, MinHashLSH  # here, since it loads scipy: a second for every process of ours

    seen = MinHashLSH(threshold=LIKE, num_perm=_MINIMA)
    minima: dict[int, MinHash] = {}
    alike: dict[int, list[int]] = {}
    for position, text in texts:
        plain = _SPACE.sub(" ", text[:_LONGEST]).strip().casefold()
        if len(plain) < SHORTEST:
            continue
        hashed = MinHash(num_perm=_MINIMA, hashfunc=zlib.crc32)
        hashed.update_batch({plain[at : at + _PIECE].encode() for at in range(len(plain) - _PIECE + 1)})
        likest = max(seen.query(hashed), key=lambda other: hashed.jaccard(minima[other]), default=None)
        if likest is not None and hashed.jaccard(minima[likest]) >= LIKE:
            alike[likest].append(position)
        else:
            seen.insert(position, hashed)
            minima[position], alike[position] = hashed, [position]
    return sorted((Alike(each) for each in alike.values() if each[1:]), key=lambda each: -len(each.positions))


def answers(parts: list[Any], replies: Iterable[int | None] = ()) -> str:
    """What is learned of the parts that `sql/dataset_texts.sql` gives: all but the prompt, and of messages what the
    policy says. Of those of each rollout it said the assistant's last `replies`; None, or none given: all."""
    said: list[str] = []
    counts = iter(replies)
    for part in parts[1:]:
        if isinstance(part, str):
            said.append(part)
        elif isinstance(part, list):
            spoken = [each for each in part if isinstance(each, dict) and each.get("role") == "assistant"]
            own = last_of(spoken, next(counts, None))
            said += [each["content"] for each in own if isinstance(each.get("content"), str)]
    return "\n".join(said)
