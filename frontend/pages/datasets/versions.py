"""One version of a dataset: what it has, member by member; and how two versions differ."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from frontend.access import page
from frontend.pages.datasets.shown import ShownMember, of_members
from frontend.query import number
from rollouts.models import DatasetVersion, Role
from rollouts.selectors import datasets, exports, runs
from rollouts.services.datasets.choosing import Recipe
from rollouts.services.datasets.statistics import statistics_of

PAGE = 20
LEARNERS = 20
_MEANT = {
    "added": "only in the second one",
    "removed": "only in the first one",
    "relabelled": "in both, wanted or corrected otherwise",
    "moved": "in both, in the other split",
    "same": "in both alike",
}


@page
@require_safe
def version(request: HttpRequest, dataset_key: str, version: int) -> HttpResponse:
    """A version: statistics, duplicates, overlap with evaluations, and its members, twenty a page (`?after=19`)."""
    found = datasets.version(datasets.get(request.user, dataset_key), version)
    after = number(request, "after")
    rows = datasets.members(found).prefetch_related("group__batch_items__batch")
    if after is not None:
        rows = rows.filter(position__gt=after)
    members = of_members(rows[:PAGE])
    last = members[-1].member.position if members else -1
    statistics = statistics_of(found)
    plain = Recipe()
    context = {
        "dataset": found.dataset,
        "version": found,
        "recipe": {
            name: value for name, value in found.recipe.items() if value and value != getattr(plain, name, None)
        },
        "statistics": statistics,
        "bars": _bars(statistics.rewards) if statistics else [],
        "members": members,
        "learners": list(exports.learned_by(found)[:LEARNERS]),
        "next": last if last + 1 < found.member_count and members else None,
        "after": after,
        "may_curate": runs.projects(request.user, Role.CURATOR).filter(pk=found.dataset.project_id).exists(),
        "may_launch": runs.projects(request.user, Role.OPERATOR).filter(pk=found.dataset.project_id).exists(),
    }
    return render(request, "datasets/version.html", context)


@page
@require_safe
def difference(request: HttpRequest, dataset_key: str) -> HttpResponse:
    """What became of the members of one version in another (`?before=1&after=2`); by default the newest two."""
    found = datasets.get(request.user, dataset_key)
    newest = found.newest  # type: ignore[attr-defined]
    after = datasets.version(found, _given(number(request, "after"), newest))
    before = datasets.version(found, _given(number(request, "before"), max(1, after.version - 1)))
    compared = datasets.difference(before, after)
    changes = [
        {
            "kind": kind,
            "meant": _MEANT[kind],
            "count": compared.counts[kind],
            "rows": _changed(before, after, compared.first[kind]) if kind != "same" else [],
        }
        for kind in datasets.CHANGES
    ]
    context = {"dataset": found, "before": before, "after": after, "changes": changes}
    return render(request, "datasets/difference.html", context)


def _bars(counts: list[int]) -> list[dict[str, str]]:
    """Where each bar begins and how high it is, as shares of the highest."""
    heights = [count / max(counts) for count in counts]
    return [{"top": f"{1 - height:.3f}", "height": f"{height:.3f}"} for height in heights]


def _given(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value


def _changed(
    before: DatasetVersion, after: DatasetVersion, changes: list[datasets.MemberChange]
) -> list[dict[str, Any]]:
    """The first members of a change, each as it is in the version that has it, in the second one if both have."""
    earlier = _shown(before, [each.before for each in changes if each.after is None])
    later = _shown(after, [each.after for each in changes])
    rows = []
    for each in changes:
        is_later = each.after is not None
        position = each.after if is_later else each.before
        shown = (later if is_later else earlier).get(position if position is not None else -1)
        rows.append({"shown": shown, "version": after if is_later else before, "change": each})
    return rows


def _shown(version: DatasetVersion, positions: list[int | None]) -> dict[int, ShownMember]:
    wanted = [position for position in positions if position is not None]
    if not wanted:
        return {}
    rows = datasets.members(version).prefetch_related("group__batch_items__batch").filter(position__in=wanted)
    return {shown.member.position: shown for shown in of_members(rows)}
