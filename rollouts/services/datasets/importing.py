"""Make a version of a dataset of a JSONL file: each line becomes a member that has it as it was.

Which forms a line may have: `trainers/data/examples.py`. All lines are in, or nothing is made: whoever reads a version
later cannot see what a file had besides.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
from django.db import connection

from rollouts.errors import Invalid
from rollouts.models import DatasetForm, DatasetVersion, Project
from rollouts.services.curation.exchange import BadLine, Line
from rollouts.services.datasets.choosing import NOTHING
from rollouts.services.datasets.making import check_words, store
from rollouts.sql import load
from rollouts.storable import data_faults, displayable
from trainers.data.examples import is_wanted, parse_example, parse_pair
from trainers.errors import DataError

MAX_ROW_BYTES = 16 * 2**20
SHOWN = 20
"""Bad lines that are told."""
_ROLES = ("assistant",)
_AT_ONCE_ROWS = 500
_AT_ONCE_BYTES = 16 * 2**20


def import_rows(
    project: Project,
    *,
    name: str,
    form: str,
    lines: Iterable[Line],
    source: str,
    actor: str,
    validation_share: float = 0.0,
    note: str = "",
    licence: str = "",
    on_bad: Callable[[BadLine], None] | None = None,
) -> DatasetVersion:
    """Make the next version of a dataset of the lines of a file, which ``source`` names.

    A line with ``"label": false`` is to be avoided, as KTO's data sets have it. ``on_bad`` is told of each bad line,
    which is then left out; without it they are told together, by number, and nothing is made. The caller has made sure
    that the user may curate. Raises Invalid.
    """
    check_words(name, note, licence)
    if form not in DatasetForm.values:
        fault = f"must be one of {', '.join(DatasetForm.values)}"
        raise Invalid(f"{NOTHING}: form {fault}.", fields={"form": fault})
    if not 0 <= validation_share < 1:
        raise Invalid(f"{NOTHING}.", fields={"validation_share": "must be at least 0 and below 1"})
    bad: list[BadLine] = []

    def fill(version_id: int) -> None:
        count = 0
        for rows in _chunks(_rows(lines, DatasetForm(form), on_bad or _collect(bad))):
            if not bad:
                _insert(version_id, count, rows, validation_share)
            count += len(rows)
        if bad:
            raise _told(bad)
        if not count:
            raise Invalid(f"{NOTHING}: {source} has no line that is an example.", fields={"lines": "has none"})

    return store(
        project,
        name=name,
        form=DatasetForm(form),
        recipe={"file": displayable(source), "validation_share": validation_share},
        parent=None,
        actor=actor,
        note=note,
        licence=licence,
        fill=fill,
    )


class _Enough(Exception):
    """So many lines are bad that no more are looked at."""


def _collect(bad: list[BadLine]) -> Callable[[BadLine], None]:
    def note(line: BadLine) -> None:
        bad.append(line)
        if len(bad) == SHOWN:
            raise _Enough

    return note


def _told(bad: list[BadLine]) -> Invalid:
    faults = {line.at: line.reason for line in bad}
    more = f", the first {SHOWN} of them" if len(bad) == SHOWN else ""
    return Invalid(f"{NOTHING}: bad lines{more}: {'; '.join(map(str, bad))}", fields=faults)


def _rows(lines: Iterable[Line], form: DatasetForm, on_bad: Callable[[BadLine], None]) -> Iterator[tuple[bytes, bool]]:
    """Each good line, and whether it is wanted."""
    for line in lines:
        try:
            try:
                yield line.text, _check(line, form)
            except BadLine as bad:
                on_bad(bad)
        except _Enough:
            return


def _check(line: Line, form: DatasetForm) -> bool:
    """Whether a line is wanted. Raises BadLine for one that is no example, or that the store cannot hold."""
    if line.fault:
        raise BadLine(line.at, line.fault)
    if len(line.text) > MAX_ROW_BYTES:
        raise BadLine(line.at, f"has more than {MAX_ROW_BYTES} bytes")
    parse = parse_pair if form == DatasetForm.PAIRS else parse_example
    try:
        parse(line.text, "the row", _ROLES)
        row: Any = msgspec.json.decode(line.text)
    except (DataError, msgspec.DecodeError, RecursionError) as error:  # the last two: of what is no part of an example
        raise BadLine(line.at, str(error)) from None
    if fault := next(data_faults(row), None):
        raise BadLine(line.at, " ".join(fault))
    return is_wanted(line.text)


def _chunks(rows: Iterable[tuple[bytes, bool]]) -> Iterator[list[tuple[bytes, bool]]]:
    chunk: list[tuple[bytes, bool]] = []
    size = 0
    for row in rows:
        if chunk and (len(chunk) == _AT_ONCE_ROWS or size + len(row[0]) > _AT_ONCE_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(row)
        size += len(row[0])
    if chunk:
        yield chunk


def _insert(version_id: int, first: int, rows: list[tuple[bytes, bool]], validation_share: float) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            load("insert_rows"),
            {
                "version_id": version_id,
                "parent_id": None,
                "first": first,
                "rows": [text.decode() for text, _ in rows],
                "wanted": [is_wanted for _, is_wanted in rows],
                "validation_share": validation_share,
                "limit": None,
            },
        )
