"""When another replica is tried in a slot whose last one did not start, or has ended."""

from django.db.models import QuerySet
from django.utils import timezone

from rollouts.models import Replica
from rollouts.reasons import ReasonCode

AWAY_S, AWAY_FOR_LONG_S = 15.0, 300.0
"""From a launcher that did not answer or put a job off, or a disk that took nothing, until it is asked again: at first,
and once that has lasted."""
_OF_WHAT_LASTED = 1 / 8


def was_away(last: Replica | None) -> bool:
    """Whether who was to start it did not answer, or put it off."""
    return last is not None and last.reason_code == ReasonCode.LAUNCHER_AWAY


def is_away(past: QuerySet[Replica]) -> bool:
    """Whether who was to start the last one of a slot was away a moment ago: it is too soon to ask again."""
    last = past.order_by("-id").first()
    if last is None or not was_away(last) or last.ended_at is None:
        return False
    before = past.exclude(reason_code=ReasonCode.LAUNCHER_AWAY).order_by("-id").values_list("id", flat=True).first()
    since = past.filter(id__gt=before or 0).earliest("id").ended_at or last.ended_at
    pause_s = min(max(AWAY_S, _OF_WHAT_LASTED * (last.ended_at - since).total_seconds()), AWAY_FOR_LONG_S)
    return (timezone.now() - last.ended_at).total_seconds() < pause_s


def back_off_s(failures: int, *, longest_s: float) -> float:
    """Seconds to wait before the next start after so many failed ones: exponential, at most `longest_s`."""
    return min(longest_s, 2.0 ** (failures - 1)) if failures else 0.0
