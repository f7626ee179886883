"""What an Atropos environment made of a group, row by row, and which rollout each row is about.

What trains is what the sessions recorded; a row only says what it is worth. It is found by its tokens, by those of them
that it trains, or, where the environment made its tokens from text, by that text.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from environments.bridges.atropos_table import Reply, Seat
from environments.errors import ProblemError, RewardError
from environments.overrides import ZEROED, asked, asked_of_group, is_given

IGNORED = -100
"""In a mask that has labels: this token does not train."""

_UNMAPPED = ("advantages", "ref_logprobs", "distill_token_ids", "distill_logprobs", "images")
"""What a group may have that has no place here."""
_Decode = Callable[[list[int]], str]


@dataclass(frozen=True, slots=True, eq=False)
class ScoredRow:
    """One scored sequence."""

    tokens: list[int]
    trained: list[int]
    """The tokens of it that train."""
    score: float
    overrides: dict[str, Any]


def rows_of(scored: Any) -> list[ScoredRow]:
    """The rows of what `postprocess_histories` gave: a group, several, or none. Raises ProblemError."""
    groups = scored if isinstance(scored, list) else [scored]
    return [row for group in groups if group for row in _rows(group)]


def match(rows: Sequence[ScoredRow], seats: Sequence[Seat], decode: _Decode) -> dict[Seat, list[ScoredRow]]:
    """Which rows are about which seat. Of alike ones each seat gets one. Rows that no seat sampled are left out.

    Raises RewardError: a row may be about several that are not alike.
    """
    found: dict[Seat, list[ScoredRow]] = {}
    left = list(rows)
    for of_reply, of_row in (
        (_whole, lambda row: [tuple(row.tokens)]),
        (_sampled, lambda row: [tuple(row.trained)]),
        (_texts, lambda row: [_squeezed(decode(row.trained))]),
    ):
        places: defaultdict[Hashable, list[tuple[Seat, Reply]]] = defaultdict(list)
        for seat in seats:
            for reply in reversed(seat.replies):
                for key in {*of_reply(reply)}:
                    places[key].append((seat, reply))
        unmatched = []
        for row in left:
            if places_of_row := [place for key in of_row(row) for place in places.get(key, ())]:
                candidates = _told_apart(row, places_of_row, decode)
                seat = next((seat for seat in candidates if seat not in found), candidates[0])
                found.setdefault(seat, []).append(row)
            else:
                unmatched.append(row)
        left = unmatched
    return found


def score_of(seat: Seat, rows: Sequence[ScoredRow]) -> float:
    """What a rollout is worth. Raises RewardError for what cannot be told or mapped."""
    if not rows:
        raise RewardError(
            f"None of the environment's scored sequences has the {seat.sampled} tokens that this rollout sampled: it "
            "left the rollout out, or made other tokens."
        )
    if names := asked(row.overrides for row in rows):
        raise RewardError(
            f"overrides {', '.join(names)} have no place here. Serve the environment at a run's own Atropos address: "
            f"of kind rl it takes {ZEROED}, of kind external all."
        )
    scores = {row.score for row in rows}
    if len(scores) > 1:
        raise RewardError(
            f"The environment scored {len(rows)} sequences of this rollout differently ({sorted(scores)}); all "
            "branches of a rollout share its reward."
        )
    return scores.pop()


def left_out(seat: Seat, rows: Sequence[ScoredRow]) -> int:
    """Tokens that were sampled, and train, though the environment's masks leave them out."""
    trained = sum(len(row.trained) for row in rows)
    return max(0, seat.sampled - trained)


def _rows(group: Any) -> Iterator[ScoredRow]:
    if not isinstance(group, dict):
        raise ProblemError(f"a scored group is a dict, not a {type(group).__name__}")
    if unmapped := [key for key in _UNMAPPED if is_given(group.get(key))]:
        raise ProblemError(
            f"The environment gives {', '.join(unmapped)}, which have no place here. Serve it at a run's own Atropos "
            "address: of kind rl it takes advantages and ref_logprobs per token, of kind external all."
        )
    if names := asked_of_group(group.get("group_overrides") or {}):
        raise ProblemError(f"group_overrides {', '.join(names)}: only a trainer of Atropos knows them.")
    columns = [list(group[key]) for key in ("tokens", "masks", "scores")]
    overrides = list(group.get("overrides") or ({} for _ in columns[0]))
    if len({len(column) for column in (*columns, overrides)}) != 1:
        raise ProblemError("tokens, masks, scores and overrides of a scored group have different lengths.")
    for tokens, mask, score, override in zip(*columns, overrides, strict=True):
        ids = [int(token) for token in tokens]
        yield ScoredRow(ids, _trained(ids, [int(each) for each in mask]), float(score), override or {})


def _trained(tokens: list[int], mask: list[int]) -> list[int]:
    if len(tokens) != len(mask):
        raise ProblemError(f"a scored sequence has {len(tokens)} tokens and a mask of {len(mask)}")
    has_labels = any(each not in (0, 1) for each in mask)
    return [token for token, each in zip(tokens, mask, strict=True) if (each != IGNORED if has_labels else each == 1)]


def _told_apart(row: ScoredRow, places: Sequence[tuple[Seat, Reply]], decode: _Decode) -> list[Seat]:
    """The seats that a row may be about, which are alike: it may train a last reply that several ended with."""
    if len({seat for seat, _ in places}) > 1 and len({reply.whole for _, reply in places}) > 1:
        text = _squeezed(decode(row.tokens))
        told = {reply: _conversation(reply, decode) for _, reply in places}
        fitting = _longest({reply: parts for reply, parts in told.items() if _has(text, parts)})
        if not fitting:  # it trains on other words than it asked, which may have replies in them
            told = {reply: _path(reply) for reply in told}
            fitting = {reply for reply, parts in told.items() if _has(text, parts)} or {*told}
        places = [(seat, reply) for seat, reply in places if reply in fitting]
        seats = {seat for seat, _ in places}
        if len(seats) > 1 and len({told[reply] for reply in fitting}) > 1:
            raise RewardError(
                f"A scored sequence may be about {len(seats)} rollouts: it trains a reply that all of them gave, and "
                "what was said before does not tell them apart in its tokens."
            )
    return list(dict.fromkeys(seat for seat, _ in places))


def _conversation(reply: Reply, decode: _Decode) -> tuple[str, ...]:
    """All that was said up to a reply, prompts too: of tokens one text, else one for each message."""
    if tokens := [each for each in reply.whole if isinstance(each, int)]:
        return (_squeezed(decode(tokens)),)
    return tuple(_squeezed(message[1]) for message in reply.whole if isinstance(message, tuple))


def _path(reply: Reply) -> tuple[str, ...]:
    return tuple(_squeezed(each.text) for each in reply.path)


def _longest(found: dict[Reply, tuple[str, ...]]) -> set[Reply]:
    """Those that are no part of another: a row that has all of the longer one is about that."""
    texts = {"".join(parts) for parts in found.values()}
    return {
        reply
        for reply, parts in found.items()
        if not any(len(text) > len("".join(parts)) and _has(text, parts) for text in texts)
    }


def _has(text: str, parts: Sequence[str]) -> bool:
    """Whether all parts stand in a text, in order."""
    at = 0
    for part in parts:
        at = text.find(part, at) + len(part)
        if at < len(part):
            return False
    return True


def _whole(reply: Reply) -> Iterable[Hashable]:
    return [reply.whole]


def _sampled(reply: Reply) -> Iterable[Hashable]:
    """With the turns before it, and alone: an environment may train its last turn only."""
    return [tuple(token for each in reply.path for token in each.token_ids), tuple(reply.token_ids)]


def _texts(reply: Reply) -> Iterable[Hashable]:
    return [_squeezed("".join(each.text for each in reply.path)), _squeezed(reply.text)]


def _squeezed(text: str) -> str:
    """Without white space, which templates add and take."""
    return "".join(text.split())
