"""What is invisible, commands a terminal or moves its neighbours shows itself, wherever text of others is shown.

Names cannot hold most of it (`storable.is_name`); what is older, and what a model says, can.
"""

import re

HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff"  # controls but tabs and line breaks; halves of characters
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction
    "\u2061-\u2064\u206a-\u206f\ufff9-\ufffb"  # operators, shapes and notes that nothing shows
    "\u034f\U000e0100-\U000e01ef"  # joiner and variants without a base: any byte can hide in them
    "\u00ad\u115f\u1160\u180e\u200b\u2028\u2029\u2060\u3164\ufeff\uffa0"  # no width, or other spaces and breaks
    "\U000e0000-\U000e007f]"  # tags: twins of ASCII that can hide instructions
)


_FILLERS = "\u034f\u115f\u1160\u3164\uffa0"
"""Letters and marks to Unicode, blanks to readers."""
_VARIANTS = re.compile("[\U000e0100-\U000e01ef]")
"""Marks to Unicode too."""


def has_hidden(text: str) -> bool:
    """Whether there is any. Of a page of ASCII that has none, thrice as fast as a search."""
    if text.replace("\n", "").replace("\t", "").isprintable() and not any(filler in text for filler in _FILLERS):
        return not text.isascii() and _VARIANTS.search(text) is not None
    return HIDDEN.search(text) is not None


def visible(text: str) -> str:
    """The text with the numbers of its hidden characters in their place."""
    return HIDDEN.sub(lambda found: f"\u27e8{number(found[0])}\u27e9", text)


def visible_line(text: str) -> str:
    """The same for what has to stay one line: line breaks are among what is hidden."""
    return visible(text).replace("\n", "\u27e8U+000A\u27e9")


def number(character: str) -> str:
    """A character as Unicode counts it, such as U+202E."""
    return f"U+{ord(character):04X}"
