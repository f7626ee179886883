"""What people type into the fields of a form, where anybody may write anything."""

from collections.abc import Callable, Mapping

from django.contrib import messages
from django.http import HttpRequest
from django.utils.html import format_html

Readers = Mapping[str, Callable[[str], float]]
"""Field -> `int` or `float`."""

_MOST = 10**9
"""Nothing that people type is larger; infinity and no number at all are refused with it."""


def numbers(values: Mapping[str, str], readers: Readers) -> tuple[dict[str, float], dict[str, str]]:
    """The numbers of those fields that are not empty, and what is wrong with the others, by field."""
    found, faults = dict[str, float](), dict[str, str]()
    for name, read in readers.items():
        if not values[name]:
            continue
        try:
            number = read(values[name])
        except ValueError:
            faults[name] = "must be a number" if read is float else "must be a whole number"
            continue
        if abs(number) <= _MOST:
            found[name] = number
        else:
            faults[name] = f"must be a number of at most {_MOST:,}"
    return found, faults


def written(text: str) -> str:
    """What was written into a text area, of whose line breaks a form makes two characters each."""
    return text.replace("\r\n", "\n").strip()


def listed(text: str) -> list[str]:
    """What stands between commas."""
    return [each.strip() for each in text.split(",") if each.strip()]


def tell_refusal(request: HttpRequest, why: str) -> None:
    """Say above its page that what was typed was refused: the form, and what is wrong in it, stands below all rows."""
    messages.error(request, format_html('{} <a href="#make">See what is wrong</a>', why))
