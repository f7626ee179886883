"""Every page, the administration site's included, shows hidden characters; what its forms hold stays as it is.

Samples have marks of their own (`frontend/visible.py`); this is for all the names and reasons between them.
"""

import re
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from environments.visible import has_hidden, visible

Handler = Callable[[HttpRequest], HttpResponse]

_PIECES = re.compile(r"<textarea\b.*?</textarea>|<script\b.*?</script>|<[^>]*>|[^<]+|<", re.DOTALL | re.IGNORECASE)
_READ_ALOUD = re.compile(r'(?<=\s)(?:title|alt|placeholder|aria-label)="[^"]*"')


def show_hidden(get_response: Handler) -> Handler:
    """Middleware: in text of a page, and in what its elements are described with, hidden characters become visible."""

    def answer(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        if response.streaming or not response.get("Content-Type", "").startswith("text/html"):
            return response
        content = response.content.decode()
        if has_hidden(content):
            response.content = _PIECES.sub(lambda piece: _piece(piece[0]), content).encode()
        return response

    return answer


def _piece(text: str) -> str:
    if not text.startswith("<"):
        return visible(text)
    if text[:9].lower() == "<textarea" or text[:7].lower() == "<script":
        return text
    return _READ_ALOUD.sub(lambda attribute: visible(attribute[0]), text)
