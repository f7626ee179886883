"""Text that a model or a prompt wrote, made safe to look at.

Escaping keeps it from being markup. That is not enough: hidden characters change what a reader sees, so each is shown
as what it is.
"""

import unicodedata

from django.utils.html import conditional_escape, format_html
from django.utils.safestring import SafeString, mark_safe

from environments.visible import HIDDEN, number


def visible_html(text: object) -> SafeString:
    """Escape text and spell out its hidden characters: U+202E becomes a marked `U+202E` with its name."""
    text, at = str(text), 0
    parts: list[str] = []
    for found in HIDDEN.finditer(text):
        parts += [conditional_escape(text[at : found.start()]), _spell(found[0])]
        at = found.end()
    parts.append(conditional_escape(text[at:]))
    return mark_safe("".join(parts))  # every part was escaped above


def _spell(character: str) -> SafeString:
    name = unicodedata.name(character, "control character")
    return format_html('<span class="control" title="{}">{}</span>', name, number(character))
