"""Every address that the product answers, as it is written in the code that answers it."""

import re
from collections.abc import Iterator
from typing import Any

from django.urls import get_resolver

from rollouts.doors.atropos.app import HANDLERS
from rollouts.routing import websocket_urlpatterns

PARAMETER = re.compile(r"<(?:\w+:)?(?P<name>\w+)>")
"""`<str:key>` in a route."""
APPLICATIONS = re.compile(r"(?<=\(\?P<app_label>)[^)]+")
"""Names of the applications that have models in the administration site, in whichever order they were loaded."""


def pages() -> Iterator[str]:
    """Routes of Django, in the order in which it tries them: pages, the native API, the administration site."""
    return _below(get_resolver(), "")


def _below(resolver: Any, prefix: str) -> Iterator[str]:
    for entry in resolver.url_patterns:
        route = prefix + str(entry.pattern)
        if hasattr(entry, "url_patterns"):
            yield from _below(entry, route)
        else:
            yield APPLICATIONS.sub("[a-z]+", route)


def atropos() -> Iterator[tuple[str, str]]:
    """(path under the key, method) of the Atropos-compatible API."""
    return ((path, method) for path, methods in HANDLERS.items() for method in methods)


def sockets() -> Iterator[str]:
    """Routes of websockets."""
    return (str(each.pattern) for each in websocket_urlpatterns)


def filled(route: str, values: dict[str, Any]) -> str:
    """The path of a route with its parameters. Raises KeyError for one without a value."""
    return "/" + PARAMETER.sub(lambda found: str(values[found["name"]]), route)
