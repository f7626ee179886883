"""The files that a tokenizer is made of here, read where anybody may write them, and exchange them at any time.

Knows no tokenizer: the check of a launch has its limits from here.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from environments.disk import ForeignDirectory

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
MAX_ENTRIES = 10_000
"""Of a model's directory. The largest models have a thousand."""
MAX_TOKENIZER_BYTES = 64 * 2**20
"""The largest are half of it."""
MAX_CONFIG_BYTES = 8 * 2**20


class TokenizerFiles(NamedTuple):
    """What they hold."""

    tokenizer: bytes
    config: bytes


def read(directory: Path, closed: Iterable[Path]) -> TokenizerFiles:
    """All of both: regular files within the limits, without a link in one of `closed`. Raises OSError, with the path.

    ``closed``: where runs write, as for `ForeignDirectory`.
    """
    with ForeignDirectory(directory, closed=list(closed), most=MAX_ENTRIES) as files:
        return TokenizerFiles(
            files.read(TOKENIZER, MAX_TOKENIZER_BYTES), files.read(TOKENIZER_CONFIG, MAX_CONFIG_BYTES)
        )
