"""What the API says about itself: its OpenAPI schema."""

import threading
from collections.abc import Callable
from functools import cache

from django.http import HttpResponse
from drf_spectacular.contrib.knox_auth_token import KnoxTokenScheme
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request


class TokenScheme(KnoxTokenScheme):  # type: ignore[no-untyped-call]
    """How a token is sent: as with Knox."""

    target_class = "rollouts.doors.native.access.TokenAuthentication"


_making = threading.Lock()
"""The generator finds out what is installed when it is first used, and fails in a thread that looks meanwhile."""


@cache
def written(renderer: Callable[[], BaseRenderer]) -> str | bytes:
    """The description of the API in YAML or JSON, made once in a process: writing YAML is as slow as making it."""
    schema = SchemaGenerator().get_schema(public=True)  # type: ignore[no-untyped-call]
    return renderer().render(schema, renderer_context={})


class SchemaApi(SpectacularAPIView):
    """`/schema`"""

    @extend_schema(exclude=True)
    def get(self, request: Request) -> HttpResponse:
        """The schema, in YAML or JSON. It is the same for everybody."""
        renderer = request.accepted_renderer
        with _making:
            text = written(type(renderer))  # type: ignore[arg-type]  # a class is hashable, whatever its instances are
        return HttpResponse(text, content_type=renderer.media_type)
