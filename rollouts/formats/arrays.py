"""A scored group on its way into the store: what is said of each rollout, and one set of token arrays for all of them.

    JSON lists ──────────┐
    MessagePack, packed ─┼─> PackedGroup ─> validation ─> services.groups.intake ─> GroupTokens, one row per group
    Atropos items ───────┘

Arrays of the G rollouts lie end to end, N = T_0 + ... + T_{G-1} entries, so a group is checked, stored and read in a
few passes whatever G is. They are little-endian: every reader takes a zero-copy view on the bytes that were stored.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from environments.types import (
    MAX_TOKEN_ID,
    JsonObject,
    Message,
    PackedRollout,
    PackedScoredGroup,
    PlayedGroup,
    PlayedRollout,
    RolloutError,
    Span,
    StopReason,
)
from rollouts.errors import Fault, Invalid, Loc

COUNT = np.dtype("<u4")
TOKEN_ID = np.dtype("<u4")
MASK = np.dtype("u1")
LOGPROB = np.dtype("<f4")

TOKEN_FAULT = f"must lie in 0..{MAX_TOKEN_ID}"
MASK_FAULT = "must hold only 0 and 1"

UNSTORED = "Nothing was stored: the rollouts do not hold together."

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class GroupArrays:
    """Token arrays of a group of G rollouts and N tokens, concatenated over its rollouts."""

    lengths: Array
    """u32 [G]: T of each rollout."""
    token_ids: Array
    """u32 [N]."""
    loss_mask: Array
    """u8 [N]; 1 where the policy sampled the token."""
    inference_logprobs: Array
    """f32 [N]; 0.0 where the mask is 0."""
    ref_logprobs: Array | None = None
    """f32 [N], of a reference or teacher policy."""
    advantages: Array | None = None
    """f32 [N]; per-token advantages the environment computed, in place of those from the rewards."""
    branch_lengths: Array | None = None
    """u32: tokens of each branch of all rollouts, in order; none of it crosses from one rollout to the next. None: each
    rollout is one branch."""

    @property
    def trained_counts(self) -> Array:
        """int64 [G]: tokens under the loss mask, per rollout."""
        ends = np.cumsum(self.lengths, dtype=np.int64)
        running = np.concatenate(([0], np.cumsum(self.loss_mask, dtype=np.int64)))
        trained: Array = running[ends] - running[ends - self.lengths]
        return trained

    def has_answers(self, is_kept: Array) -> bool:
        """Whether in any of the rollouts that are kept, bool [G], the environment spoke after the policy: a token under
        the loss mask is followed by one that is not."""
        ends_turn = (self.loss_mask[:-1] == 1) & (self.loss_mask[1:] == 0)
        sequences = self.lengths if self.branch_lengths is None else self.branch_lengths
        branch = np.repeat(np.arange(len(sequences)), sequences)
        kept = np.repeat(is_kept, self.lengths)
        return bool((ends_turn & (branch[:-1] == branch[1:]) & kept[:-1]).any())


class RolloutRecord(msgspec.Struct, kw_only=True):
    """What is stored of a rollout besides its tokens."""

    reward: float | None
    seat: str = ""
    messages: Sequence[JsonObject] = ()
    """`role`, `content` and what else there is, in the OpenAI form."""
    tools: list[JsonObject] = []
    earlier_branches: list[list[JsonObject]] = []
    metrics: dict[str, float] = {}
    stop_reason: StopReason = StopReason.STOP
    error: RolloutError | None = None
    dispatch_policy_version: int | None = None
    first_policy_version: int | None = None
    last_policy_version: int | None = None
    replica: str = ""
    generation_s: float = 0.0
    spans: list[Span] = []


@dataclass(frozen=True, slots=True)
class PackedGroup:
    """A scored group ready to be checked and stored."""

    environment: str
    problem_key: str
    rollouts: list[RolloutRecord]
    arrays: GroupArrays
    key: str | None = None
    """Chosen by the submitter, so that a retry is stored once; None: made up."""
    environment_version: str = ""
    """Empty: nobody said."""
    extras: bytes | None = None
    """What else an external environment sent with the group, in the encoding of whoever received it."""


def pack_group(group: PlayedGroup | PackedScoredGroup, at: Loc) -> PackedGroup:
    """A group as it came over the wire. Raises Invalid, with faults below ``at``, when arrays cannot be packed."""
    packed = isinstance(group, PackedScoredGroup)
    return PackedGroup(
        environment=group.environment,
        problem_key=group.problem_key,
        key=group.key,
        environment_version=group.environment_version,
        rollouts=[_record(rollout) for rollout in group.rollouts],
        arrays=join_arrays(group.rollouts, at) if packed else pack_arrays(group.rollouts, at),  # type: ignore[arg-type]
    )


def pack_rollouts(rollouts: Sequence[PlayedRollout]) -> tuple[list[RolloutRecord], GroupArrays]:
    """What a holder of a lease played."""
    return [_record(rollout) for rollout in rollouts], pack_arrays(rollouts, ("work",))


def pack_arrays(rollouts: Sequence[PlayedRollout], at: Loc) -> GroupArrays:
    """Arrays from lists of numbers. Raises Invalid, naming each field, for ragged lists and numbers of another kind."""
    faults: dict[Loc, str] = {}
    for index, rollout in enumerate(rollouts):
        length = len(rollout.token_ids)
        for name in ("loss_mask", "inference_logprobs"):
            if (entries := len(getattr(rollout, name))) != length:
                faults[*at, "rollouts", index, name] = f"has {entries} entries for {length} tokens"
        faults |= _branch_faults(rollout, length, (*at, "rollouts", index))
    token_ids = [rollout.token_ids for rollout in rollouts]
    loss_masks = [rollout.loss_mask for rollout in rollouts]
    for index in _out_of_range(token_ids, MAX_TOKEN_ID):
        faults[*at, "rollouts", index, "token_ids"] = TOKEN_FAULT
    for index in _out_of_range(loss_masks, 1):
        faults[*at, "rollouts", index, "loss_mask"] = MASK_FAULT
    _raise(faults)
    return GroupArrays(
        lengths=np.array([len(rollout.token_ids) for rollout in rollouts], COUNT),
        token_ids=_joined(token_ids, TOKEN_ID),
        loss_mask=_joined(loss_masks, MASK),
        inference_logprobs=_floats([rollout.inference_logprobs for rollout in rollouts]),
        branch_lengths=_branch_lengths(rollouts),
    )


def join_arrays(rollouts: Sequence[PackedRollout], at: Loc) -> GroupArrays:
    """Arrays from packed bytes, without looking at a number. Raises Invalid, naming each field, for ragged ones."""
    faults: dict[Loc, str] = {}
    for index, rollout in enumerate(rollouts):
        length = len(rollout.loss_mask)
        for name in ("token_ids", "inference_logprobs", "ref_logprobs", "advantages"):
            data = getattr(rollout, name)
            if data is not None and len(data) != 4 * length:
                faults[*at, "rollouts", index, name] = f"has {len(data)} bytes for {length} tokens of 4 bytes"
        faults |= _branch_faults(rollout, length, (*at, "rollouts", index))
    for name in ("ref_logprobs", "advantages"):
        if len({getattr(rollout, name) is None for rollout in rollouts}) > 1:
            faults[*at, "rollouts", name] = "give it for every rollout of the group, or for none"
    _raise(faults)

    def optional(name: str) -> Array | None:
        if not rollouts or getattr(rollouts[0], name) is None:
            return None
        return np.frombuffer(b"".join(getattr(rollout, name) for rollout in rollouts), LOGPROB)

    return GroupArrays(
        lengths=np.array([len(rollout.loss_mask) for rollout in rollouts], COUNT),
        token_ids=np.frombuffer(b"".join(rollout.token_ids for rollout in rollouts), TOKEN_ID),
        loss_mask=np.frombuffer(b"".join(rollout.loss_mask for rollout in rollouts), MASK),
        inference_logprobs=np.frombuffer(b"".join(rollout.inference_logprobs for rollout in rollouts), LOGPROB),
        ref_logprobs=optional("ref_logprobs"),
        advantages=optional("advantages"),
        branch_lengths=_branch_lengths(rollouts),
    )


def split(data: bytes | memoryview, lengths: Sequence[int], itemsize: int) -> Iterator[memoryview]:
    """The parts of a stored array that belong to each rollout, without a copy."""
    view, at = memoryview(data), 0
    for length in lengths:
        end = at + int(length) * itemsize
        yield view[at:end]
        at = end


def branches_of(lengths: Sequence[int], branch_lengths: bytes | memoryview | None) -> list[list[int]]:
    """The branch lengths of each rollout, from what is stored; one of its own length for a rollout that names none."""
    if branch_lengths is None:
        return [[length] for length in lengths]
    left = iter(np.frombuffer(branch_lengths, COUNT).tolist())
    branches: list[list[int]] = []
    for length in lengths:
        own: list[int] = []
        while length:
            own.append(next(left))
            length -= own[-1]
        branches.append(own)
    return branches


def _branch_faults(rollout: PlayedRollout | PackedRollout, length: int, at: Loc) -> dict[Loc, str]:
    branches, earlier = rollout.branch_lengths, rollout.earlier_branches
    if not branches:
        return (
            {(*at, "earlier_branches"): "has messages of branches that branch_lengths does not name"} if earlier else {}
        )
    found: dict[Loc, str] = {}
    if min(branches) < 1 or sum(branches) != length:
        found[*at, "branch_lengths"] = f"must be lengths of at least 1 that add up to the {length} tokens"
    if earlier and len(earlier) != len(branches) - 1:
        found[*at, "earlier_branches"] = f"has {len(earlier)} entries for {len(branches)} branches: all but the last"
    return found


def _branch_lengths(rollouts: Sequence[PlayedRollout] | Sequence[PackedRollout]) -> Array | None:
    if not any(len(rollout.branch_lengths) > 1 for rollout in rollouts):
        return None
    whole = [len(rollout.loss_mask) for rollout in rollouts]
    return np.array(
        [
            length
            for rollout, all_of_it in zip(rollouts, whole, strict=True)
            for length in rollout.branch_lengths or ([all_of_it] if all_of_it else [])
        ],
        COUNT,
    )


def _raise(faults: dict[Loc, str]) -> None:
    if faults:
        raise Invalid(UNSTORED, faults=[Fault(loc, message) for loc, message in faults.items()])


def _out_of_range(lists: Sequence[Sequence[int]], limit: int) -> list[int]:
    """Indexes of the lists with a number outside of 0..limit, however large it is."""
    return [index for index, values in enumerate(lists) if values and not 0 <= min(values) <= max(values) <= limit]


def _joined(lists: Sequence[Sequence[int]], dtype: np.dtype[Any]) -> Array:
    return np.fromiter(chain.from_iterable(lists), dtype, sum(map(len, lists)))


def _floats(lists: Sequence[Sequence[float]]) -> Array:
    with np.errstate(over="ignore"):  # what does not fit 32 bits becomes infinite, and is refused as that
        return np.fromiter(chain.from_iterable(lists), np.float64, sum(map(len, lists))).astype(LOGPROB)


def _record(rollout: PlayedRollout | PackedRollout) -> RolloutRecord:
    return RolloutRecord(
        reward=rollout.reward,
        seat=rollout.seat,
        messages=_plain(rollout.messages),
        tools=rollout.tools,
        earlier_branches=[_plain(messages) for messages in rollout.earlier_branches],
        metrics=rollout.metrics,
        stop_reason=rollout.stop_reason,
        error=rollout.error,
        dispatch_policy_version=rollout.dispatch_policy_version,
        first_policy_version=rollout.first_policy_version,
        last_policy_version=rollout.last_policy_version,
        replica=rollout.replica,
        generation_s=rollout.generation_s,
        spans=rollout.spans,
    )


def _plain(messages: Sequence[Message]) -> list[JsonObject]:
    # Readers of Atropos' format refuse a message without content.
    return [{"content": ""} | msgspec.to_builtins(message) for message in messages]
