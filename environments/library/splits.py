"""Which problems of a made-up environment are held out."""

import hashlib

_EVAL_SHARE = 0.125


def digest(text: str) -> str:
    """Hex SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def is_held_out(text: str) -> bool:
    """Whether a problem belongs to the eval split: an eighth of all do. It depends on the text alone."""
    return int(digest(text)[:8], 16) < _EVAL_SHARE * 2**32
