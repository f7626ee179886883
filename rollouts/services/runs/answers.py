"""What drivers note of replicas: that they answered to episodes, which spares them a probe."""

from collections.abc import Iterable

from django.db import connection

from rollouts.models import Replica
from rollouts.sql import load

KEPT_S = 2.0
"""For so long an answer is not noted again: less than the silence after which a replica is probed."""


def note(found: Iterable[Replica]) -> None:
    """Ready replicas have answered. One statement for all; it writes only those whose last answer is older than KEPT_S,
    for hundreds of drivers may say the same of the same few. No state changes, so no event."""
    if ids := [replica.pk for replica in found]:
        with connection.cursor() as cursor:
            cursor.execute(load("note_answers"), {"ids": ids, "kept_s": KEPT_S})
