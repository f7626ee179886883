"""A version of a dataset as rows to train on: the same version is the same bytes, whatever happens beside it.

    sizes of the next members ─► a page that fits in memory ─► members with all that is said of them ─► rows

    sft   prompt, completion                 messages; token_ids and loss_mask where an environment sent none
    kto   prompt, completion, label          the same
    dpo   prompt, chosen, rejected           what both begin with is the prompt

The prompt is what stands before the policy's first word, so words of an assistant in it are never trained. Each row
says where it is from. What fits no row is left out and counted. Pages are read on their own: no snapshot is held.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec

from environments.types import Split
from rollouts.errors import Invalid
from rollouts.formats import examples
from rollouts.formats.examples import Dialogue, Sampled, line_of
from rollouts.models import DatasetVersion, ExportForm, PolicyVersion, Run, RunKind
from rollouts.selectors import sampled_masks
from rollouts.sql import binary_cursor, load

PAGE_MEMBERS = 1_000
PAGE_BYTES = 4 * 2**20
"""Of what a page's members are on the disk, where long ones are packed to about a third."""
UNWANTED, SPEECHLESS, ALIKE, APART = "unwanted", "speechless", "alike", "apart"
"""Why a member is left out: it is to be avoided, which nothing in SFT says; the policy said nothing in it that could be
trained; both of a pair say the same; the two of a pair were asked different things."""


@dataclass(slots=True)
class Page:
    """Rows of members that follow each other."""

    next_position: int
    """Of the first member behind them."""
    rows: list[tuple[str, bytes]] = field(default_factory=list)
    """(split, line of JSON)."""
    left_out: Counter[str] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)
    """JSON of run, environment and its version -> rows."""


class _Member(msgspec.Struct, array_like=True):
    position: int
    split: str
    is_wanted: bool
    step: int | None
    row: str | None
    group_id: int
    run_id: int
    run: str
    group: str
    environment: str
    environment_version: str
    problem_key: str
    rollout: int
    seat: str
    policy_version: int | None
    reward: float | None
    messages: str
    tools: str | None
    earlier_branches: str | None
    other: int | None
    other_reward: float | None
    other_messages: str
    other_earlier_branches: str | None
    edited: str | None
    labellers: list[str] | None
    guidelines: list[str] | None


def check_form(version: DatasetVersion, form: ExportForm) -> None:
    """Raise Invalid unless the version's examples can be written so."""
    if version.form != form.needs:
        other = " or ".join(f"export-{each.value}" for each in ExportForm if each.needs == version.form)
        raise Invalid(
            "Nothing is exported.",
            fields={"form": f"{version} has {version.form}, and {form.value} is made of {form.needs.value}: {other}"},
        )


def pages(
    version: DatasetVersion, form: ExportForm, position: int = 0, *, splits: Collection[str] = tuple(Split)
) -> Iterator[Page]:
    """The rows of some splits from a position on, and what is counted of them. A row is the same whichever splits are
    asked for. Raises Invalid for a version of another form."""
    check_form(version, form)
    renderer = _Renderer(form)
    while span := _next_span(version, position):
        page = Page(span[1] + 1)
        members = [each for each in _read(version, *span) if each.split in splits]
        sampled = sampled_masks.of_groups({each.group_id for each in members if each.row is None})
        for member in members:
            renderer.add(member, sampled.get(member.group_id), page)
        position = page.next_position
        yield page


def _next_span(version: DatasetVersion, position: int) -> tuple[int, int] | None:
    """First and last position of the next page; None: there are no more."""
    last, size = None, 0
    with binary_cursor() as cursor:
        values = {"version_id": version.pk, "position": position, "limit": PAGE_MEMBERS}
        cursor.execute(load("member_sizes"), values)
        for at, own in cursor:
            size += own
            if last is not None and size > PAGE_BYTES:
                break
            last = at
    return None if last is None else (position, last)


def _read(version: DatasetVersion, first: int, last: int) -> list[_Member]:
    with binary_cursor() as cursor:
        cursor.execute(load("rendered_members"), {"version_id": version.pk, "first": first, "last": last})
        return [_Member(*row) for row in cursor]


class _Renderer:
    def __init__(self, form: ExportForm) -> None:
        self._form = form
        self._teachers: dict[int, dict[int | None, str]] = {}

    def add(self, member: _Member, sampled: Sampled | None, page: Page) -> None:
        """Put the rows of a member on a page."""
        if self._form == ExportForm.SFT and not member.is_wanted:
            page.left_out[UNWANTED] += 1
            return
        if member.row is not None:
            forms, why = _given(member.row, self._form), SPEECHLESS
        else:
            assert sampled is not None, "a scored group has tokens"
            forms, why = self._pair(member, sampled) if self._form == ExportForm.DPO else _example(member, sampled)
        if not forms:
            page.left_out[why] += 1
            return
        own = {"label": member.is_wanted} if self._form == ExportForm.KTO else {}
        source = _NOWHERE if member.row is not None else self._source(member)
        page.sources[_origin(source["run"], source["environment"], source["environment_version"])] += len(forms)
        for number, each in enumerate(forms):
            branch = number if len(forms) > 1 else None
            # What a file says of itself is not written over, but for whether it is wanted, which all figures go by.
            page.rows.append((member.split, line_of(own | source | {"branch": branch} | each | own)))

    def _pair(self, member: _Member, sampled: Sampled) -> tuple[list[dict[str, Any]], str]:
        assert member.other is not None, "the form of a version says what its members are"
        better = _branches(member, sampled)[-1]
        worse = examples.branches(member.other_messages, member.other_earlier_branches, sampled, member.other)[-1]
        rewards = {
            "chosen_reward": member.reward,
            "rejected_reward": member.other_reward,
            "rejected_rollout": member.other,
        }
        if better.is_asked and worse.is_asked:
            at = examples.common(better, worse)
            if at == 0:
                return [], APART
            if not examples.answer_differently(better, worse):
                return [], ALIKE
            said = {"prompt": better.parts[:at], "chosen": better.parts[at:], "rejected": worse.parts[at:]}
            return [said | _tools(member) | rewards], ""
        chosen, rejected = (sampled.tokens(index)[-1:] for index in (member.rollout, member.other))
        if not chosen or not rejected or member.edited is not None:
            return [], SPEECHLESS
        if chosen == rejected:
            return [], ALIKE
        return [{"chosen": chosen[0], "rejected": rejected[0]} | _tools(member) | rewards], ""

    def _source(self, member: _Member) -> dict[str, Any]:
        """Where a row is from: the same keys in each."""
        is_edited = member.edited is not None
        return {
            "run": member.run,
            "step": member.step,
            "environment": member.environment,
            "environment_version": member.environment_version,
            "policy_version": member.policy_version,
            "teacher": self._teacher(member),
            "problem_key": member.problem_key,
            "group": member.group,
            "rollout": member.rollout,
            "seat": member.seat or None,
            "reward": member.reward,
            "labellers": member.labellers or [],
            "guidelines": member.guidelines or [],
            "human": is_edited,
            "original": msgspec.Raw(member.messages) if is_edited else None,
        }

    def _teacher(self, member: _Member) -> str | None:
        """Who played it, of a run that trains nothing."""
        if member.run_id not in self._teachers:
            self._teachers[member.run_id] = _teachers(Run.objects.get(pk=member.run_id))
        return self._teachers[member.run_id].get(member.policy_version)


_NOWHERE: dict[str, Any] = {
    "run": None,
    "step": None,
    "environment": None,
    "environment_version": None,
    "policy_version": None,
    "teacher": None,
    "problem_key": None,
    "group": None,
    "rollout": None,
    "seat": None,
    "reward": None,
    "labellers": [],
    "guidelines": [],
    "human": False,
    "original": None,
}
"""Of a line of a file."""


@lru_cache(maxsize=256)
def _origin(run: str | None, environment: str | None, environment_version: str | None) -> str:
    return json.dumps({"run": run, "environment": environment, "environment_version": environment_version})


def _teachers(run: Run) -> dict[int | None, str]:
    """Policy version -> who that was, by what never changes: a model's name may be taken away, its directory stays."""
    if run.kind != RunKind.EVAL:
        return {}
    config = run.parsed.model
    player = f"endpoint:{config.endpoint}" if config.endpoint else config.path
    versions = PolicyVersion.objects.filter(run=run).select_related("checkpoint__run")
    return {
        each.version: f"{each.checkpoint.run.key}@{each.checkpoint.step}" if each.checkpoint else player
        for each in versions
    }


def _example(member: _Member, sampled: Sampled) -> tuple[list[dict[str, Any]], str]:
    branches = _branches(member, sampled)
    if all(branch.is_asked for branch in branches):
        return [_split(branch) | _tools(member) for branch in branches], ""
    tokens = [] if member.edited is not None else sampled.tokens(member.rollout)
    return [each | _tools(member) for each in tokens], SPEECHLESS


def _branches(member: _Member, sampled: Sampled) -> list[Dialogue]:
    """What is learned of a rollout: each of its branches, or what a person put in the place of them all."""
    told = examples.branches(member.messages, member.earlier_branches, sampled, member.rollout)
    return told if member.edited is None else [examples.edit(told[-1], member.edited)]


def _split(branch: Dialogue) -> dict[str, Any]:
    return {"prompt": branch.parts[: branch.begin], "completion": branch.parts[branch.begin :]}


def _tools(member: _Member) -> dict[str, Any]:
    """As text: schemas differ from row to row, and a table has one schema."""
    return {"tools": member.tools}


def _given(row: str, form: ExportForm) -> list[dict[str, Any]]:
    """A line of a file: as it was, but for conversations, which are cut where the assistant begins to speak."""
    try:
        fields = msgspec.json.decode(row, type=dict[str, msgspec.Raw])
        # In a table every row has every column.
        said = {name: value for name, value in fields.items() if bytes(value) != b"null"}
        return _cut(said, form)
    except msgspec.MsgspecError:  # no messages of the chat format
        return []


def _cut(fields: dict[str, msgspec.Raw], form: ExportForm) -> list[dict[str, Any]]:
    if (tools := fields.get("tools")) is not None and bytes(tools)[:1] in (b"[", b"{"):
        fields = fields | {"tools": msgspec.Raw(msgspec.json.encode(bytes(tools).decode()))}
    if "messages" not in fields or form == ExportForm.DPO:
        return [dict(fields)]
    told = examples.read_conversation(bytes(fields["messages"]).decode(), None)
    beside = {name: value for name, value in fields.items() if name not in _EXAMPLES}
    return [beside | _split(told)] if told.is_asked else []


_EXAMPLES = {"messages", "prompt", "completion", "token_ids", "loss_mask"}
"""What may be learned of a line; where there are messages, those are it: see `trainers.data.examples.parse_example`."""
