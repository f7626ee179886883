"""What a page reads from its query string, where anybody may write anything."""

from django.http import HttpRequest

_MAX_DIGITS = 18
"""Of the numbers that the database holds."""


def number(request: HttpRequest, name: str) -> int | None:
    """A number of the query string; None where there is none, or something else."""
    text = request.GET.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None
