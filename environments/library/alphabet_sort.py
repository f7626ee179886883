"""alphabet_sort: keep a list of made-up names in alphabetical order while more come in. Several turns, no data."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from environments.library.draws import Draws, of_split
from environments.library.made_up import MadeUp, MadeUpArgs
from environments.library.splits import digest
from environments.rewards.replies import in_tag, without_thoughts
from environments.types import Message, PlayedRollout, Problem, Split

_STARTS = ["Ba", "Be", "Da", "De", "Fi", "Ga", "Ha", "Jo", "Ka", "Le", "Lo", "Ma", "Mi", "Na", "No", "Pe", "Ra", "Ro"]
_STARTS += ["Sa", "Se", "Ta", "To", "Va", "Ve", "Wi", "Ya", "Ze", "A", "E", "O"]
_MIDDLES = ["la", "li", "lo", "mi", "na", "ne", "ra", "ri", "ro", "sa", "ta", "ti", "va", "vi", "ze", "bo"]
_FIRST_ENDS = ["", "n", "s", "la", "ra", "ne", "nor", "vin"]
_LAST_ENDS = ["ck", "nd", "rt", "st", "man", "ner", "son", "ley"]
_FIRST = "Sort these names{by}. Reply with the names, one per line, between <sorted> and </sorted>."
_NEXT = "Put these into the sorted list, and reply with the whole of it in the same form."


class AlphabetSortArgs(MadeUpArgs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of alphabet_sort."""

    min_turns: Annotated[int, Meta(ge=1, description="Fewest turns.")] = 1
    max_turns: Annotated[int, Meta(ge=1, le=20, description="Most turns; sampling.max_turns has to allow them.")] = 3
    min_names: Annotated[int, Meta(ge=2, description="Fewest names that come in per turn.")] = 3
    max_names: Annotated[int, Meta(ge=2, le=20, description="Most names that come in per turn.")] = 5
    names: Annotated[
        Literal["full", "short"], Meta(description="Full: first and last name, of which one decides; short: one word.")
    ] = "full"
    power: Annotated[
        float, Meta(ge=1, le=100, description="Exponent of the similarity: how little a half-sorted list is worth.")
    ] = 4.0


class AlphabetSort(MadeUp[AlphabetSortArgs]):
    """Sort made-up names, and merge more of them in turn by turn.

    Task: sort the names of the first turn by first or by last name, as the problem says; then put those of each further
    turn into the list. Lists stand in <sorted> tags, one name per line.
    Data: names made of syllables by the seed. No two of an episode have a first or a last name in common. An eighth of
    all first turns is held out. Licence: ours.
    Arguments: `min_turns`, `max_turns`, `min_names`, `max_names`, `names`, `power`, `train_count`, `eval_count`,
    `seed`.
    Reward: mean over the turns of similarity ** `power`; the similarity of two lists is 2 L / (m + n), for their
    lengths m and n and the length L of their longest common subsequence. A turn that was not reached counts 0.
    Checked: a solving player earns 1.00; one that writes the names in any order .15; one that sorts by the first name
    always .56. Means of 1,000 problems, worked out by the tests for fewer.
    """

    name = "alphabet_sort"
    args_type = AlphabetSortArgs

    def problem(self, split: Split, index: int) -> Problem:
        by, turns = of_split(split, f"{self.args.seed}/{split}/{index}", self._draw, lambda drawn: _asked(*drawn))
        return Problem(
            key=f"{by or 'short'}-{digest(msgspec.json.encode(turns).decode())[:16]}",
            messages=[Message("user", _asked(by, turns))],
            data={"by": by, "turns": turns},
        )

    async def start(self, problem: Problem) -> list[list[str]]:
        """The names of the turns to come, the next ones first."""
        return list(problem.data["turns"][1:])

    async def step(self, state: list[list[str]], reply: Message) -> list[Message] | None:
        return [Message("user", _told(_NEXT, state.pop(0)))] if state else None

    def reward(self, problem: Problem, rollout: PlayedRollout) -> float:
        """See the class. Metrics: `exact`, the share of turns whose list is right, and `similarity`, their mean."""
        lists = _sorted_lists(problem)
        replies = [message.text for message in rollout.messages if message.role == "assistant"]
        similarities = [similarity(right, _listed(reply)) for right, reply in zip(lists, replies, strict=False)]
        rollout.metrics["exact"] = similarities.count(1.0) / len(lists)
        rollout.metrics["similarity"] = sum(similarities) / len(lists)
        return sum(math.pow(each, self.args.power) for each in similarities) / len(lists)

    def solution(self, problem: Problem) -> list[Message]:
        messages = list(problem.messages)
        later = problem.data["turns"][1:]
        for number, names in enumerate(_sorted_lists(problem)):
            messages.append(Message("assistant", "<sorted>\n{}\n</sorted>".format("\n".join(names))))
            messages += [Message("user", _told(_NEXT, names)) for names in later[number : number + 1]]
        return messages

    def _draw(self, draws: Draws) -> tuple[str, list[list[str]]]:
        is_short = self.args.names == "short"
        by = "" if is_short else draws.pick(["first", "last"])
        turns = draws.between(self.args.min_turns, self.args.max_turns)
        sizes = [draws.between(self.args.min_names, self.args.max_names) for _ in range(turns)]
        if is_short:
            names = _different(draws, [""], sum(sizes), most_middles=1)
        else:
            firsts, lasts = _different(draws, _FIRST_ENDS, sum(sizes)), _different(draws, _LAST_ENDS, sum(sizes))
            names = [f"{first} {last}" for first, last in zip(firsts, lasts, strict=True)]
        return by, [[names.pop() for _ in range(size)] for size in sizes]


def similarity(right: Sequence[str], found: Sequence[str]) -> float:
    """2 L / (m + n) for lists of lengths m and n whose longest common subsequence has length L.

    `right` repeats nothing, so that subsequence is the longest of found names whose places in `right` rise. Of a list
    that is more than twice as long as `right` the rest counts for its length alone.
    """
    places = {name: place for place, name in enumerate(right)}
    ends: list[int] = []  # the least place on which a rising subsequence of each length can end
    for name in found[: 2 * len(right)]:
        if (place := places.get(name)) is not None:
            at = bisect_left(ends, place)
            ends[at : at + 1] = [place]
    return 2 * len(ends) / (len(right) + len(found))


def _sorted_lists(problem: Problem) -> list[list[str]]:
    """The right list of every turn."""
    part = 1 if problem.data["by"] == "last" else 0
    known: list[str] = []
    lists = []
    for names in problem.data["turns"]:
        known = sorted([*known, *names], key=lambda name: name.split(" ")[part])
        lists.append(known)
    return lists


def _listed(reply: str) -> list[str]:
    """The names in a reply; none without the tags."""
    lines = (in_tag(without_thoughts(reply), "sorted") or "").split("\n")
    return [" ".join(line.split()) for line in lines if line.strip()]


def _asked(by: str, turns: Sequence[Sequence[str]]) -> str:
    return _told(_FIRST.format(by=f" by {by} name" if by else ""), turns[0])


def _told(task: str, names: Sequence[str]) -> str:
    return "\n".join([task, "", *names])


def _different(draws: Draws, ends: Sequence[str], count: int, *, most_middles: int = 2) -> list[str]:
    """Names of syllables, each another."""
    found: list[str] = []
    while len(found) < count:
        middle = "".join(draws.pick(_MIDDLES) for _ in range(draws.between(1, most_middles)))
        name = draws.pick(_STARTS) + middle + draws.pick(ends)
        if name not in found:
            found.append(name)
    return found
