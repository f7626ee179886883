"""Groups as files: read Atropos' group JSONL into a run, and write a run's groups out again.

    file ─► lines_of ─► chunks ─► key of each line ─► those the run lacks ─► items ─► groups ─► submit ─► next chunk
    ids of the groups, page by page ─► items ─► lines

Memory does not grow with the files. A group's key is made of its line, so an import that was interrupted anywhere, and
is run again, stores each line once and passes over what is there at the speed of hashing.
"""

import gzip
import hashlib
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from io import BufferedReader

from django.db.models import Q, QuerySet

from rollouts.errors import Fault, Invalid, Malformed
from rollouts.formats.arrays import PackedGroup
from rollouts.formats.atropos.additions import complete
from rollouts.formats.atropos.encoding import read_items
from rollouts.formats.atropos.groups import check_trainable, pack_item
from rollouts.formats.atropos.items import decode_one
from rollouts.formats.checks import check_groups
from rollouts.formats.json_arrays import encode
from rollouts.models import Run, ScoredGroup
from rollouts.services.groups import intake
from rollouts.states import GroupState
from trainers.run_config import RunConfig

CHUNK_GROUPS = 16
CHUNK_BYTES = 32 * 2**20
"""Lines that are decoded and stored together, at most."""
MAX_LINE_BYTES = 256 * 2**20
SHOWN_FAULTS = 3
"""Of a bad line."""
PAGE_IDS = 10_000
PAGE_TOKENS = 500_000
"""Tokens that are read and encoded together; a group with more goes alone."""
EXPORTED = (
    GroupState.READY,
    GroupState.BATCHED,
    GroupState.TRAINED,
    GroupState.STALE,
    GroupState.FILTERED,
    GroupState.FAILED,
    GroupState.SURPLUS,
)
"""States that are exported unless others are named: every training group with a reward that no person rejected. Groups
without a sampled token have rewards and failed."""

_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file, or why there is none."""

    at: str
    """`file:line`."""
    text: bytes
    fault: str = ""


class BadLine(Exception):
    """A line that holds no group."""

    def __init__(self, at: str, reason: str) -> None:
        super().__init__(f"{at}: {reason}")
        self.at = at
        self.reason = reason


@dataclass
class Imported:
    """What became of the lines."""

    stored: int = 0
    known: int = 0
    """The run had them already."""
    bad: int = 0
    rollouts: int = 0
    tokens: int = 0
    """Of the groups stored."""


def lines_of(file: BufferedReader, name: str) -> Iterator[Line]:
    """The lines of a JSONL file that are not blank, unpacked when it is gzipped. It may be a pipe."""
    stream = gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == _GZIP else file
    number = 0
    while True:
        number += 1
        at = f"{name}:{number}"
        try:
            text = stream.readline(MAX_LINE_BYTES + 1)
            is_too_long = len(text) > MAX_LINE_BYTES
            while is_too_long and text and not text.endswith(b"\n"):
                text = stream.readline(MAX_LINE_BYTES)
        except (EOFError, OSError, zlib.error) as error:  # gzip's own errors are OSErrors
            yield Line(at, b"", f"the file cannot be read from here on: {error}")
            return
        if is_too_long:
            yield Line(at, b"", f"has more than {MAX_LINE_BYTES} bytes")
        elif not text:
            return
        elif stripped := text.strip():
            yield Line(at, stripped)


def import_groups(
    run: Run,
    lines: Iterable[Line],
    totals: Imported,
    *,
    environment: str,
    actor: str,
    on_bad: Callable[[BadLine], None],
) -> Iterator[None]:
    """Store the group of every line; counts into ``totals``, and comes back after each chunk to be looked at.

    ``on_bad`` is told of each bad line when all before it are stored; what it raises ends the import. Raises what
    ``groups.submit`` does for a run that takes no groups. The run's queue may grow beyond what its API takes: whoever
    imports wants all of it.
    """
    with closing(_Ordinals()) as ordinals:
        for chunk in _chunks(lines):
            keyed = [(line, ordinals.key(line.text)) for line in chunk]
            stored = ScoredGroup.objects.filter(run=run, key__in=[key for _, key in keyed])
            known = set(stored.values_list("key", flat=True))
            groups: list[PackedGroup] = []
            for line, key in keyed:
                if key in known:
                    totals.known += 1
                    continue
                try:
                    groups.append(_group(line, key, environment, run.parsed))
                except BadLine as bad:
                    _store(run, groups, actor, totals)
                    groups = []
                    totals.bad += 1
                    on_bad(bad)
            _store(run, groups, actor, totals)
            yield


def export_groups(run: Run, *, states: Iterable[str] = EXPORTED, environment: str | None = None) -> Iterator[bytes]:
    """The run's groups as lines of group JSONL, oldest first: those that were there when this began.

    Each page is read on its own, so that no snapshot is held. Groups of which every episode failed, or none that is
    scored has tokens, are left out, and so are such rollouts of the others.
    """
    chosen = exportable(run, states=states, environment=environment)
    for ids in pages_of(chosen.filter(token_count__gt=0)):
        for item in read_items(ids, is_complete=True):
            if item.tokens:
                # What is kept as it was sent may have line breaks, though never inside of its text.
                yield encode(item).replace(b"\n", b" ") + b"\n"


def pages_of(chosen: QuerySet[ScoredGroup]) -> Iterator[list[int]]:
    """Ids of groups, oldest first, in pages that fit in memory: of those that were there when this began."""
    newest = chosen.order_by("-id").values_list("id", flat=True).first()
    last = 0
    while newest is not None and last < newest:
        page = list(
            chosen.filter(id__gt=last, id__lte=newest).order_by("id").values_list("id", "token_count")[:PAGE_IDS]
        )
        yield from _pieces(page)
        last = page[-1][0] if page else newest


def exportable(run: Run, *, states: Iterable[str] = EXPORTED, environment: str | None = None) -> QuerySet[ScoredGroup]:
    """The groups that exports are made of: none that people withhold, unless rejected ones are asked for."""
    named = {} if environment is None else {"environment__name": environment}
    states = [str(state) for state in states]
    return ScoredGroup.objects.filter(
        Q(withheld="") | Q(state=GroupState.REJECTED),
        run=run,
        state__in=states,
        reward_mean__isnull=False,
        tokens__isnull=False,
        **named,
    )


class _Ordinals:
    """Which time a text comes: two equal lines are two groups. Counted on disk, so that memory does not grow."""

    def __init__(self) -> None:
        self._counts = sqlite3.connect("")  # a private file that is removed when it is closed, behind a cache of 2 MB
        self._counts.execute("CREATE TABLE counts (digest BLOB PRIMARY KEY, times INTEGER) WITHOUT ROWID")

    def key(self, text: bytes) -> str:
        """The key of the group of a line: the same for the same line and time in every import."""
        digest = hashlib.sha256(text).digest()
        [(times,)] = self._counts.execute(
            "INSERT INTO counts VALUES (?, 1) ON CONFLICT DO UPDATE SET times = times + 1 RETURNING times", [digest]
        ).fetchall()
        return hashlib.sha256(digest + str(times).encode()).hexdigest()

    def close(self) -> None:
        self._counts.close()


def _chunks(lines: Iterable[Line]) -> Iterator[list[Line]]:
    chunk: list[Line] = []
    size = 0
    for line in lines:
        if chunk and (len(chunk) == CHUNK_GROUPS or size + len(line.text) > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(line)
        size += len(line.text)
    if chunk:
        yield chunk


def _group(line: Line, key: str, environment: str, config: RunConfig | None = None) -> PackedGroup:
    if line.fault:
        raise BadLine(line.at, line.fault)
    try:
        group = replace(complete(pack_item(decode_one(line.text), environment), line.text), key=key)
        if config is not None:
            check_trainable(group, config)
    except Malformed as malformed:
        raise BadLine(line.at, malformed.message) from None
    except Invalid as invalid:
        raise BadLine(line.at, "; ".join(map(_worded, invalid.faults[:SHOWN_FAULTS]))) from None
    try:
        check_groups([group])
    except Invalid as invalid:
        faults = [f"{'.'.join(map(str, fault.loc[2:]))} {fault.message}" for fault in invalid.faults[:SHOWN_FAULTS]]
        raise BadLine(line.at, "; ".join(faults)) from None
    return group


def _worded(fault: Fault) -> str:
    """A fault of an item and its place in the line."""
    why = (fault.context or {}).get("error")
    return f"{fault.path}: {fault.message}".lstrip(": ") + (f": {why}" if isinstance(why, str) else "")


def _store(run: Run, groups: list[PackedGroup], actor: str, totals: Imported) -> None:
    if not groups:
        return
    intake.submit(run, groups, actor=actor)
    totals.stored += len(groups)
    totals.rollouts += sum(len(group.rollouts) for group in groups)
    totals.tokens += sum(len(group.arrays.token_ids) for group in groups)


def _pieces(page: Iterable[tuple[int, int]]) -> Iterator[list[int]]:
    """Consecutive ids with at most PAGE_TOKENS tokens together, or one id."""
    ids: list[int] = []
    size = 0
    for group_id, tokens in page:
        if ids and size + tokens > PAGE_TOKENS:
            yield ids
            ids, size = [], 0
        ids.append(group_id)
        size += tokens
    if ids:
        yield ids
