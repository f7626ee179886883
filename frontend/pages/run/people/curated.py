"""What people did with groups of a run, and what they say of them: shown whole, and anew when the run changes."""

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote_plus, urlencode

from django.db.models import QuerySet
from django.http import HttpRequest

from frontend.access import may_curate
from rollouts.models import Label, QueueUnit, Run
from rollouts.selectors import calibration, curation, next_batch
from rollouts.selectors.calibration import Acceptance
from rollouts.services.curation.filters import MOST_NAMED
from rollouts.storable import MAX_INT

SHOWN = 100
"""Acts, and words, newest first; all of them: the REST API."""
_LONGEST = 4_000
"""Characters of keys in a link: servers take no line of any length."""
_WHERE: dict[str, Callable[[str], Any]] = {
    "min_reward": float,
    "max_reward": float,
    "min_version": int,
    "max_version": int,
    "environment": str,
}
"""What the words on the page may be narrowed by: fields of a queue's filter."""


def of_run(request: HttpRequest, run: Run) -> dict[str, Any]:
    """Acts, calibration and words, of these only the ones that the request asks for."""
    where = _where(request)
    said = calibration.words_where(run, **where) if where else curation.words(run)
    words, found = list(said.defer("edited")[:SHOWN]), calibration.of_run(run)
    return {
        "acts": curation.acts(run)[:SHOWN],
        "words": words,
        "where": where,
        "queue_of_them": _queue_of(run, where, said) if where else "",
        "calibration": found,
        "lines": {
            "reward": _linked(found.by_reward),
            "version": _linked(found.by_version),
            "environment": _linked(found.by_environment),
        },
        "held": next_batch.held_groups(run),
        "may_curate": may_curate(request, run),
        "shown": SHOWN,
    }


def _linked(lines: Sequence[Acceptance]) -> list[tuple[Acceptance, str]]:
    """Each line with the query that leads to its words."""
    return [(line, urlencode(line.where)) for line in lines]


def _where(request: HttpRequest) -> dict[str, Any]:
    """What the words of the page are narrowed by; what makes no sense narrows nothing."""
    found = {}
    for name, read in _WHERE.items():
        try:
            value = read(request.GET.get(name, ""))
        except ValueError:
            continue
        if value != "" and (isinstance(value, str) or abs(value) <= MAX_INT):
            found[name] = value
    return found


def _queue_of(run: Run, where: dict[str, Any], said: QuerySet[Label]) -> str:
    """The query that fills in the form of a queue of the groups that words are on, the newest of many.

    By their keys: rewards are the environment's here, and in a queue those that people gave. What people rejected for
    all its reward is what the rewards of a queue would leave out.
    """
    unit = QueueUnit.ROLLOUT if said.filter(rollout__isnull=False).exists() else QueueUnit.GROUP
    keys: list[str] = []
    for key in said.order_by("-group_id").values_list("group__key", flat=True).distinct()[:MOST_NAMED]:
        if "," in key or key != key.strip():
            continue  # the form, which parts keys at commas, cannot say it
        if len(quote_plus(", ".join([*keys, key]))) > _LONGEST:
            break
        keys.append(key)
    chosen = {"groups": ", ".join(keys)} if keys else where
    return urlencode({"run": run.key, "project": run.project.slug, "unit": unit.value} | chosen)
