"""What the API says about itself: its OpenAPI schema."""

import threading
from functools import cache
from typing import Any

from drf_spectacular.contrib.knox_auth_token import KnoxTokenScheme
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView
from rest_framework.request import Request
from rest_framework.response import Response


class TokenScheme(KnoxTokenScheme):  # type: ignore[no-untyped-call]
    """How a token is sent: as with Knox."""

    target_class = "rollouts.doors.native.access.TokenAuthentication"


_making = threading.Lock()
"""The generator finds out what is installed when it is first used, and fails in a thread that looks meanwhile."""


@cache
def made_schema() -> dict[str, Any]:
    """The description of the API, made once in a process."""
    schema: dict[str, Any] = SchemaGenerator().get_schema(public=True)  # type: ignore[no-untyped-call]
    return schema


class SchemaApi(SpectacularAPIView):
    """`/schema`"""

    @extend_schema(exclude=True)
    def get(self, request: Request) -> Response:
        """The schema, in YAML or JSON. It is the same for everybody, and made once."""
        with _making:
            return Response(made_schema())
