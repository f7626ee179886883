"""What there is to judge a run of agents by, as plain data: its tables beside what others remember of it."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rollouts.formats.arrays import Array, branches_of, split
from rollouts.models import AgentSession, BatchItem, GroupTokens, Lease, Rollout, Run, ScoredGroup
from rollouts.services.batches.verification import verify_batches
from tests.chaos.agent_engine import Sample
from tests.chaos.agents import Acknowledged


class Stretch(NamedTuple):
    """Tokens of a rollout that the policy is said to have sampled at once."""

    before: list[int]
    """All tokens before it, of its branch."""
    token_ids: list[int]
    mark: bytes
    """As `Sample.mark`."""


@dataclass(frozen=True)
class PlayedEpisode:
    """A rollout as the store has it."""

    reward: float | None
    error: str = ""
    stretches: tuple[Stretch, ...] = ()


@dataclass(frozen=True)
class PlayedTogether:
    """A group as the store has it."""

    id: int
    key: str
    state: str
    is_outside: bool
    rollouts: tuple[PlayedEpisode, ...]
    digest: str
    """Of its rewards and tokens."""
    steps: tuple[int, ...] = ()
    """Of the batches that it is in."""


class OpenedFromOutside(NamedTuple):
    """A session as the store has it."""

    group: str
    is_finished: bool
    is_grouped: bool


@dataclass(frozen=True)
class AgentEvidence:
    """A run that is over, and what agents, engines and a witness of the tables know of it."""

    state: str
    groups: tuple[PlayedTogether, ...]
    sessions: tuple[OpenedFromOutside, ...]
    leases: int
    broken_batches: tuple[str, ...]
    acknowledged: tuple[Acknowledged, ...]
    left: tuple[tuple[str, int], ...]
    """(group, place) of sessions that their agents never finished."""
    committed: dict[int, str]
    """Group -> digest, as it was seen while the run went on."""
    sampled: tuple[Sample, ...]
    living: tuple[str, ...] = ()
    """Processes of the run that were there after its end."""


def gather(
    run: Run,
    *,
    acknowledged: Iterable[Acknowledged],
    left: Iterable[tuple[str, int]],
    committed: dict[int, str],
    sampled: Iterable[Sample],
    living: Iterable[str],
) -> AgentEvidence:
    """Read what the tables say, and put it beside the rest."""
    columns = ("group_key", "finished_at", "grouped_at")
    opened = AgentSession.objects.filter(run=run).order_by("pk").values_list(*columns)
    return AgentEvidence(
        state=Run.objects.get(pk=run.pk).state,
        groups=tuple(_groups(run)),
        sessions=tuple(OpenedFromOutside(group, bool(finished), bool(grouped)) for group, finished, grouped in opened),
        leases=Lease.objects.filter(run=run).count(),
        broken_batches=tuple(f"step {each.step}: {each.fault}" for each in verify_batches(run) if each.fault),
        acknowledged=tuple(acknowledged),
        left=tuple(left),
        committed=committed,
        sampled=tuple(sampled),
        living=tuple(living),
    )


def digests(run: Run) -> dict[int, str]:
    """Every group of a run that has its rollouts, and what these are."""
    tokens = {row.group_id: row for row in GroupTokens.objects.filter(group__run=run)}
    rewards: defaultdict[int, list[float | None]] = defaultdict(list)
    stored = Rollout.objects.filter(group__run=run, group__in=tokens).order_by("group", "index")
    for group, reward in stored.values_list("group_id", "reward"):
        rewards[group].append(reward)
    return {group: _digest(row, rewards[group]) for group, row in tokens.items()}


def _digest(row: GroupTokens, rewards: list[float | None]) -> str:
    arrays = (row.lengths, row.token_ids, row.loss_mask, row.inference_logprobs)
    return hashlib.sha256(b"".join([*map(bytes, arrays), repr(rewards).encode()])).hexdigest()


def _groups(run: Run) -> Iterator[PlayedTogether]:
    steps: defaultdict[int, list[int]] = defaultdict(list)
    for group, step in BatchItem.objects.filter(batch__run=run).values_list("group_id", "batch__step"):
        steps[group].append(step)
    known = digests(run)
    rows = ScoredGroup.objects.filter(run=run).select_related("tokens").prefetch_related("rollouts").order_by("pk")
    for row in rows:
        tokens: GroupTokens | None = getattr(row, "tokens", None)
        told = sorted(row.rollouts.all(), key=lambda each: each.index)
        spoken = _stretches(tokens) if tokens else []
        yield PlayedTogether(
            id=row.pk,
            key=str(row.key),
            state=row.state,
            is_outside=row.problem_index is None,
            rollouts=tuple(
                PlayedEpisode(each.reward, str((each.error or {}).get("message", "")), tuple(stretches))
                for each, stretches in zip(told, spoken, strict=True)
            ),
            digest=known.get(row.pk, ""),
            steps=tuple(sorted(steps[row.pk])),
        )


def _stretches(row: GroupTokens) -> list[list[Stretch]]:
    """Of each rollout, branch by branch."""
    lengths = np.frombuffer(row.lengths, "<u4").tolist()
    arrays = [
        [np.frombuffer(part, dtype) for part in split(bytes(data), lengths, np.dtype(dtype).itemsize)]
        for data, dtype in ((row.token_ids, "<u4"), (row.loss_mask, "u1"), (row.inference_logprobs, "<f4"))
    ]
    found = []
    for token_ids, mask, logprobs, branches in zip(*arrays, branches_of(lengths, row.branch_lengths), strict=True):
        of_rollout, begin = [], 0
        for length in branches or [len(token_ids)]:
            part = slice(begin, begin + length)
            of_rollout += list(_of_branch(token_ids[part], mask[part], logprobs[part]))
            begin += length
        found.append(of_rollout)
    return found


def _of_branch(token_ids: Array, mask: Array, logprobs: Array) -> Iterator[Stretch]:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask, [0]))))
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        yield Stretch(token_ids[:start].tolist(), token_ids[start:end].tolist(), logprobs[start:end].tobytes())
