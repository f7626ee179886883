"""Make a version of a dataset: its members are chosen, numbered and hashed in one transaction, and never change.

    recipe ─► chosen (names looked up) ─► members, by one INSERT ... SELECT ─► digest, streamed ─► the version's row

The version's row comes last, under an id that was drawn before: it says how many members it has and what they hash to,
and the dataset is locked only while its next number is taken. Memory does not grow with the members.
"""

import hashlib
import re
from collections.abc import Callable
from typing import Any

import msgspec
from django.db import connection, transaction
from django.db.models import Max

from rollouts.errors import Invalid
from rollouts.models import Dataset, DatasetForm, DatasetVersion, Project
from rollouts.models.dataset import MAX_LICENCE, MAX_NOTES
from rollouts.models.model import MODEL_NAME
from rollouts.services.datasets.choosing import NOTHING, Recipe, ResolvedRecipe, choose, told
from rollouts.sql import load
from rollouts.storable import MAX_KEY, UNSTORABLE, is_storable

_LINES = 5_000
"""Of members that are hashed at a time."""
_LEFT_OUT = {
    "withheld": "are in groups that people withhold",
    "states": "are in groups of other states",
    "environment": "are of other environments",
    "unscored": "have no reward or no sampled token",
    "rejected": "are rejected by somebody",
    "tags": "have none of the tags",
    "has_correction": "have no correction",
    "min_reward": "have a lower reward",
    "max_reward": "have a higher reward",
    "truncated": "were ended by a token budget",
    "accepted": "are accepted by nobody",
}


def make(
    project: Project, *, name: str, form: str, recipe: Recipe, actor: str, note: str = "", licence: str = ""
) -> DatasetVersion:
    """Make the next version of a dataset, and the dataset if the project has none of the name.

    ``licence`` becomes that of the dataset, unless it is empty. The caller has made sure that the user may curate.
    Locks the dataset's row when the members are there. Raises Invalid, by field, also where nothing fits.
    """
    check_words(name, note, licence)
    chosen = choose(project, form, recipe)

    def fill(version_id: int) -> None:
        statement, more = _statement(chosen)
        with connection.cursor() as cursor:
            cursor.execute(statement, chosen.parameters | more | {"version_id": version_id})
            if not cursor.rowcount:
                raise _empty(chosen)

    return store(
        project,
        name=name,
        form=chosen.form,
        recipe=msgspec.to_builtins(chosen.recipe),
        parent=chosen.parent,
        actor=actor,
        note=note,
        licence=licence,
        fill=fill,
    )


def store(
    project: Project,
    *,
    name: str,
    form: DatasetForm,
    recipe: dict[str, Any],
    parent: DatasetVersion | None,
    actor: str,
    note: str,
    licence: str,
    fill: Callable[[int], None],
) -> DatasetVersion:
    """Store a version whose members ``fill`` inserts under the id that it is given, all in one transaction."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SELECT nextval('rollouts_datasetversion_id_seq')")
            [version_id] = cursor.fetchone()
        fill(version_id)
        count, digest = _hash(version_id)
        dataset = _locked(project, name, actor, licence)
        newest = dataset.versions.aggregate(version=Max("version"))["version"] or 0
        version = DatasetVersion.objects.create(
            pk=version_id,
            dataset=dataset,
            version=newest + 1,
            form=form,
            recipe=recipe,
            parent=parent,
            member_count=count,
            digest=digest,
            note=note,
            actor=actor,
        )
    version.refresh_from_db(fields=["at"])
    return version


def describe(dataset: Dataset, *, notes: str, licence: str) -> None:
    """Say something else of a dataset; its versions stay as they are. Raises Invalid, by field."""
    _refuse(_faults_of_texts(notes=(notes, MAX_NOTES), licence=(licence, MAX_LICENCE)))
    dataset.notes, dataset.licence = notes, licence
    dataset.save(update_fields=["notes", "licence"])


def check_words(name: str, note: str, licence: str) -> None:
    """Raise Invalid unless a dataset may be called so, and the rest be said of it."""
    faults = _faults_of_texts(note=(note, MAX_NOTES), licence=(licence, MAX_LICENCE))
    if len(name) > MAX_KEY or not re.fullmatch(MODEL_NAME, name):
        faults["name"] = f"must have 1 to {MAX_KEY} lower-case letters, digits, dashes, dots or underscores"
    _refuse(faults)


def _faults_of_texts(**texts: tuple[str, int]) -> dict[str, str]:
    faults = {}
    for field, (text, most) in texts.items():
        if len(text) > most:
            faults[field] = f"must have at most {most} characters"
        elif not is_storable(text):
            faults[field] = UNSTORABLE
    return faults


def _refuse(faults: dict[str, str]) -> None:
    if faults:
        raise Invalid(f"{NOTHING}: {told(faults.items())}.", fields=faults)


def _statement(chosen: ResolvedRecipe) -> tuple[str, dict[str, Any]]:
    if chosen.has_rows:
        return load("insert_rows"), {"first": 0, "wanted": [], "rows": []}
    if chosen.form == DatasetForm.PAIRS:
        return load("dataset_candidates") + load("decided") + load("choose_pairs"), {}
    return load("dataset_candidates") + load("choose_examples"), {}


def _empty(chosen: ResolvedRecipe) -> Invalid:
    """What to say of a recipe that chooses nothing."""
    with connection.cursor() as cursor:
        cursor.execute(load("dataset_candidates") + load("count_left_out"), chosen.parameters)
        counts = dict(cursor.fetchall())
    fits = counts.pop(None, 0)
    of = f"Of {fits + sum(counts.values())} rollouts"
    parts = [f"{count} {_LEFT_OUT[why]}" for why, count in counts.items()]
    if fits:
        parts.append(f"{fits} fit, but no two of a group make a pair: their rewards, or what they say, are too alike")
    told_of = f"{of} {', '.join(parts)}" if parts else "There is no rollout there"
    return Invalid(f"{NOTHING}: no member is left. {told_of}.", fields={why: _LEFT_OUT[why] for why in counts})


def _hash(version_id: int) -> tuple[int, str]:
    digest, count = hashlib.sha256(), 0
    with connection.chunked_cursor() as cursor:
        cursor.execute(load("dataset_lines"), {"version_id": version_id})
        while lines := cursor.fetchmany(_LINES):
            digest.update("".join(f"{line}\n" for (line,) in lines).encode())
            count += len(lines)
    return count, digest.hexdigest()


def _locked(project: Project, name: str, actor: str, licence: str) -> Dataset:
    Dataset.objects.get_or_create(project=project, name=name, defaults={"actor": actor, "licence": licence})
    dataset = Dataset.objects.select_for_update(no_key=True).get(project=project, name=name)
    if licence and dataset.licence != licence:
        dataset.licence = licence
        dataset.save(update_fields=["licence"])
    return dataset
