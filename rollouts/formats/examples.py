"""What supervised trainers want of a rollout: where the policy begins to speak, its tokens, and a line of it all.

    lengths, mask and branches of a group        ─► Sampled  ─► replies of the policy in each branch, tokens of each
    messages of one branch, replies of it        ─► Dialogue ─► prompt | completion

Messages stay JSON as the store has it, cut where one ends. Environments never speak as the assistant once an episode
has begun, so of the assistant's messages those that the policy did not say come first: examples inside of the prompt.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import msgspec
import numpy as np

from rollouts.formats.arrays import COUNT, MASK, TOKEN_ID, branches_of

Each = TypeVar("Each")
Parts = list[msgspec.Raw]
"""JSON of some messages, each for itself."""


class _Said(msgspec.Struct):
    role: str = ""


_encoder = msgspec.json.Encoder()
_decode_parts = msgspec.json.Decoder(Parts).decode
_decode_roles = msgspec.json.Decoder(list[_Said]).decode


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One branch of a rollout."""

    parts: Parts
    roles: list[str]
    begin: int
    """Number of the first message that the policy said; as many as there are: it said none."""

    @property
    def is_asked(self) -> bool:
        """Whether the policy speaks, and is asked before it does; else only its tokens say what it did."""
        return 0 < self.begin < len(self.parts) and self.roles[0] != "assistant"

    @property
    def shows_assistant(self) -> bool:
        """Whether the prompt has words of an assistant, which nobody sampled."""
        return "assistant" in self.roles[: self.begin]

    def speaks_behind(self, at: int) -> bool:
        """Whether an assistant speaks from message `at` on, as only the policy does where two rollouts differ."""
        return "assistant" in self.roles[at:]


def last_of(spoken: Sequence[Each], replies: int | None) -> Sequence[Each]:
    """Of what an assistant said that which the policy did: its last `replies`; None: all of it."""
    return spoken if replies is None else spoken[max(0, len(spoken) - replies) :]


def read_conversation(messages: str, replies: int | None) -> Dialogue:
    """Messages as JSON, of which the policy said the assistant's last `replies`; None: all of the assistant's."""
    roles = [said.role for said in _decode_roles(messages)]
    own = last_of([at for at, role in enumerate(roles) if role == "assistant"], replies)
    return Dialogue(_decode_parts(messages), roles, own[0] if own else len(roles))


def edit(conversation: Dialogue, edited: str) -> Dialogue:
    """What a person put in a conversation's place: as many of the assistant's first messages are of the prompt."""
    shown = conversation.roles[: conversation.begin].count("assistant")
    whole = read_conversation(edited, None)
    spoken = [at for at, role in enumerate(whole.roles) if role == "assistant"]
    return Dialogue(whole.parts, whole.roles, spoken[shown] if shown < len(spoken) else len(whole.roles))


def branches(messages: str, earlier: str | None, sampled: "Sampled", index: int) -> list[Dialogue]:
    """Each branch of a rollout of a group, the last one last."""
    told = [*([] if earlier is None else (bytes(each).decode() for each in _decode_parts(earlier))), messages]
    replies = sampled.replies(index, len(told))
    return [read_conversation(each, count) for each, count in zip(told, replies, strict=True)]


def common(one: Dialogue, other: Dialogue) -> int:
    """How many messages two conversations begin with alike."""
    pairs = zip(one.parts, other.parts, strict=False)
    different = (at for at, (mine, theirs) in enumerate(pairs) if bytes(mine) != bytes(theirs))
    return next(different, min(len(one.parts), len(other.parts)))


def answer_differently(one: Dialogue, other: Dialogue) -> bool:
    """Whether the policy speaks in both behind what they have in common."""
    at = common(one, other)
    is_end = at == min(len(one.parts), len(other.parts))
    return not is_end and one.speaks_behind(at) and other.speaks_behind(at)


class Sampled:
    """What of a group's rollouts was sampled, branch by branch."""

    def __init__(
        self,
        lengths: bytes,
        loss_mask: bytes,
        branch_lengths: bytes | None,
        asked: Sequence[int | None],
        token_ids: Callable[[], bytes],
    ) -> None:
        """Arrays as they are stored; `token_ids` is asked only where they are wanted. Of a rollout that an endpoint
        played nobody has tokens: it was `asked` so often for what its messages show; None: nobody counted."""
        self._branches = branches_of(np.frombuffer(lengths, COUNT).tolist(), branch_lengths)
        self._mask = np.frombuffer(loss_mask, MASK)
        self._asked = asked
        self._read_token_ids = token_ids

    @cached_property
    def _token_ids(self) -> np.ndarray[Any, np.dtype[Any]]:
        return np.frombuffer(self._read_token_ids(), TOKEN_ID)

    @cached_property
    def _turns(self) -> list[list[int]]:
        ends = np.cumsum([length for own in self._branches for length in own], dtype=np.int64)
        begins = self._mask.copy()
        begins[1:] &= 1 - self._mask[:-1]
        starts = np.concatenate(([0], ends[:-1])).astype(np.int64)
        inside = starts[starts < len(self._mask)]
        begins[inside] = self._mask[inside]
        running = np.concatenate(([0], np.cumsum(begins, dtype=np.int64)))
        counts = iter((running[ends] - running[starts]).tolist())
        return [[next(counts) for _ in own] for own in self._branches]

    def replies(self, index: int, branches: int = 1) -> list[int | None]:
        """How many of the assistant's last messages the policy said, in each of the last `branches` of a rollout; what
        an earlier branch has too is counted there. None: nobody counted, and all of them are taken for its own."""
        turns = self._turns[index]
        if not any(turns):
            return [self._asked[index]] * branches
        # Of some only the last branches have messages.
        return [*[0] * (branches - len(turns)), *turns[-branches:]]

    def tokens(self, index: int) -> list[dict[str, list[int]]]:
        """What the policy read and wrote, in each branch with a sampled token."""
        begin = sum(sum(own) for own in self._branches[:index])
        parts = []
        for length in self._branches[index]:
            part = slice(begin, begin + length)
            begin += length
            if self._mask[part].any():
                parts.append({"token_ids": self._token_ids[part].tolist(), "loss_mask": self._mask[part].tolist()})
        return parts


def line_of(fields: dict[str, Any]) -> bytes:
    """A line of JSON with its end. What is stored as it was sent may have line breaks, though never inside of text."""
    return _encoder.encode(fields).replace(b"\n", b" ") + b"\n"
