"""Text that a model or a prompt wrote, made safe to look at.

Escaping keeps it from being markup. That is not enough: control characters, direction overrides and invisible
characters change what a reader sees, so they are shown as what they are.
"""

import unicodedata

from django.utils.html import conditional_escape, format_html
from django.utils.safestring import SafeString, mark_safe

_KEPT = {"\n", "\t"}
_INVISIBLE = {
    "\u00ad",
    "\u115f",
    "\u1160",
    "\u180e",
    "\u200b",
    "\u2028",
    "\u2029",
    "\u2060",
    "\u3164",
    "\ufeff",
    "\uffa0",
}
_DIRECTION = {"\u061c", "\u200e", "\u200f", *map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))}


def must_be_shown(character: str) -> bool:
    """Whether a character would be invisible, or would move its neighbours, when printed as it is."""
    if character in _KEPT:
        return False
    if character in _INVISIBLE or character in _DIRECTION:
        return True
    # Cc: controls; Cs: lone surrogates; E0000-E007F: tags, invisible ASCII twins that can hide instructions.
    return unicodedata.category(character) in {"Cc", "Cs"} or "\U000e0000" <= character <= "\U000e007f"


def visible_html(text: object) -> SafeString:
    """Escape text and spell out its invisible characters: U+202E becomes a marked `U+202E` with its name."""
    parts: list[str] = []
    plain: list[str] = []
    for character in str(text):
        if not must_be_shown(character):
            plain.append(character)
            continue
        parts.append(conditional_escape("".join(plain)))
        plain.clear()
        parts.append(_spell(character))
    parts.append(conditional_escape("".join(plain)))
    return mark_safe("".join(parts))  # every part was escaped above


def _spell(character: str) -> SafeString:
    name = unicodedata.name(character, "control character")
    return format_html('<span class="control" title="{}">U+{}</span>', name, f"{ord(character):04X}")
