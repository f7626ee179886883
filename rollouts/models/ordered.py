"""JSON that comes back as it was written."""

from typing import Any

from django.db import models
from psycopg.types.json import Json


class OrderedJSONField(models.JSONField):
    """Objects keep the order of their keys, which chat templates render: jsonb sorts them by length.

    A database compares or searches such a value only as ``::jsonb``; what is hashed is hashed so, too.
    """

    def db_type(self, connection: Any) -> str:
        """PostgreSQL's other type of JSON, which is text that was checked."""
        return "json"

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        """The value, not by way of jsonb."""
        return Json(value if prepared else self.get_prep_value(value))

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        """What the driver has read already, as Django has it read no jsonb."""
        return value
