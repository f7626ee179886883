"""What a version of a dataset has, counted once after it was made: figures, duplicates, overlap with evaluations.

A worker counts what is not counted yet (`workers/counting.py`), and so does the command line. Memory does not grow with
the version: Postgres counts, prompts are hashed page by page, and for near duplicates a bounded sample is looked at.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from django.db import connection, transaction

from rollouts.models import DatasetVersion
from rollouts.selectors import sampled_masks
from rollouts.services.datasets.likeness import Alike, answers, find_alike
from rollouts.services.datasets.overlap import find_overlap
from rollouts.services.datasets.statistics import Copies, Duplicates, Figures, MembersOf, Statistics
from rollouts.sql import load, streamed

MOST_COMPARED = 20_000
"""Members of which near duplicates are looked for; of more a sample, evenly spread."""
SHOWN = 20
"""Duplicates, and members in an overlap, that are named."""
_SHOWN_EACH = 5
_PARTS = 20
_MOST_NAMES = 50
_TEXTS = 200


def uncounted() -> list[int]:
    """Ids of the versions that are not counted, oldest first."""
    return list(DatasetVersion.objects.filter(statistics__isnull=True).order_by("id").values_list("pk", flat=True))


def count(version_id: int) -> bool:
    """Count a version, unless that is done, or being done elsewhere. Locks its row while it counts."""
    with transaction.atomic():
        rows = DatasetVersion.objects.select_for_update(of=("self",), skip_locked=True, no_key=True)
        version = rows.select_related("dataset").filter(pk=version_id, statistics__isnull=True).first()
        if version is None:
            return False
        version.statistics = msgspec.to_builtins(_count(version))
        version.save(update_fields=["statistics"])
    return True


def _count(version: DatasetVersion) -> Statistics:
    [figures] = _rows("dataset_figures", version)
    found = Figures(**figures)
    parts: dict[str, list[MembersOf]] = {"environment": [], "run": [], "tag": []}
    for row in _rows("dataset_parts", version, most=_MOST_NAMES):
        parts[row["kind"]].append(MembersOf(row["name"], row["members"]))
    return Statistics(
        figures=found,
        rewards=_rewards(version, found),
        environments=parts["environment"],
        runs=parts["run"],
        tags=parts["tag"],
        duplicates=_duplicates(version),
        overlap=find_overlap(version, shown=SHOWN),
    )


def _rewards(version: DatasetVersion, figures: Figures) -> list[int]:
    low, high = figures.reward_min, figures.reward_max
    if low is None or high is None or low == high:
        return []
    counts = [0] * _PARTS
    for row in _rows("dataset_rewards", version, low=low, high=high, parts=_PARTS):
        counts[row["part"]] = row["count"]
    return counts


def _duplicates(version: DatasetVersion) -> Duplicates:
    copies = _rows("dataset_texts", version, more="count_copies", shown=SHOWN, shown_each=_SHOWN_EACH)
    step = -(-version.member_count // MOST_COMPARED) or 1
    alike = find_alike(_sample(version, step))
    return Duplicates(
        exact=int(copies[0]["copies"]) if copies else 0,
        exact_first=[Copies(row["times"], row["positions"]) for row in copies],
        near=sum(len(each.positions) - 1 for each in alike),
        near_first=[_shown(each) for each in alike[:SHOWN]],
        compared=-(-version.member_count // step),
    )


def _shown(alike: Alike) -> Copies:
    return Copies(len(alike.positions), alike.positions[:_SHOWN_EACH])


def _sample(version: DatasetVersion, step: int) -> Iterator[tuple[int, str]]:
    """Positions of members and what is learned of them, each text once: who says exactly the same is counted apart."""
    seen: set[int] = set()
    statement = load("dataset_texts") + load("sample_texts")
    for page in streamed(statement, {"version_id": version.pk, "step": step}, _TEXTS):
        own = sampled_masks.replies(
            (group_id, index, 1) for _, _, group_id, *indexes in page for index in indexes if index is not None
        )
        for position, text, group_id, *indexes in page:
            if (digest := hash(text)) not in seen:
                seen.add(digest)
                # Of the messages of a rollout and, of a pair, of the other one.
                replies = [own[group_id, index][-1] for index in indexes if index is not None]
                yield position, answers(msgspec.json.decode(text), replies)


def _rows(name: str, version: DatasetVersion, more: str = "", **parameters: Any) -> list[dict[str, Any]]:
    statement = load(name) + (load(more) if more else "")
    with connection.cursor() as cursor:
        cursor.execute(statement, {"version_id": version.pk, **parameters})
        names = [column.name for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
