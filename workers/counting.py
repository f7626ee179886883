"""Counts what new versions of datasets have, one after the other, in a thread of a worker."""

import logging
import time
from collections.abc import Callable

from django.db import InterfaceError, OperationalError

from rollouts.services.datasets import counting
from workers.database import with_connection

log = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0


def count_versions(stopping: Callable[[], bool], pause_s: float = LOOK_EVERY_S) -> None:
    """Count every version that is not counted and that nobody counts, until told to stop. One that cannot be counted is
    left alone from then on: its page goes on to say that it is not counted yet."""
    hopeless: set[int] = set()
    while not stopping():
        try:
            for version_id in with_connection(counting.uncounted):
                if version_id not in hopeless and not stopping():
                    _count(version_id, hopeless)
        except (InterfaceError, OperationalError) as error:
            log.warning("cannot look for versions of datasets (%s); trying again", str(error).strip())
        time.sleep(pause_s)


def _count(version_id: int, hopeless: set[int]) -> None:
    try:
        with_connection(counting.count, version_id)
    except (InterfaceError, OperationalError):
        raise
    except Exception:
        log.exception("cannot count version %s of a dataset", version_id)
        hopeless.add(version_id)
