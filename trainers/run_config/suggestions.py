"""What was probably meant by a word that is not known."""

from collections.abc import Iterable
from difflib import get_close_matches

_LONGEST = 200
"""Characters of a word that may be a misspelt one: to compare longer ones takes long, and nothing is like them."""


def suggest(word: str, known: Iterable[str], *, likeness: float = 0.6) -> str:
    """The known word that was probably meant; empty when none is like it. `likeness` is a share of the letters."""
    if len(word) > _LONGEST:
        return ""
    return next(iter(get_close_matches(word, list(known), n=1, cutoff=likeness)), "")
