"""instructions: write a text that meets constraints which a program can check. Needs no data.

The idea is IFEval's (Zhou et al. 2023, arXiv:2311.07911); the constraints, their words and their checks are our own.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from environments.library.draws import Draws, of_split
from environments.library.instructions.constraints import KINDS, LONGEST, Constraint, holds, is_text, told
from environments.library.instructions.writing import TOPICS, written
from environments.library.made_up import MadeUp, MadeUpArgs
from environments.library.splits import digest
from environments.rewards import replies
from environments.types import FinishedRollout, Message, Problem, Split

_PASSIVE = {"exclude", "few_words", "lower_case", "upper_case", "no_commas"}
"""Kinds that many texts meet anyway: a problem has at least one other, where others are asked for."""
_BESIDE: dict[str, set[str]] = {
    "json": {"include", "exclude", "lower_case"},
    "bullets": {"words", "few_words", "include", "exclude", "lower_case", "upper_case", "no_commas"},
    "lower_case": set(KINDS) - {"upper_case"},
    "few_words": set(KINDS) - {"words", "json"},
}
"""What a kind can stand beside; all others go with everything that goes with them."""
_RELATIONS = ("exactly", "at least")
_INCLUDED = ("lantern", "harvest", "copper", "mirror", "winter", "compass", "thunder", "velvet", "orchard", "signal")
_EXCLUDED = ("the", "and", "some", "these", "near", "behind", "was", "is", "of", "very")
_STARTS = ("long ago", "in the morning", "nobody knew", "on quiet days", "every year", "if you look closely")
_ENDS = ("and that was all", "until next time", "as everybody knows", "for a long while", "in the end", "so they say")
_KEYS = ("title", "place", "summary", "mood", "season", "lesson", "author", "colour")
_MAX_DRAWS = 1_000
_ASKED = "Write a text about {topic}. It has to meet all of this:"


class InstructionsArgs(MadeUpArgs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of instructions."""

    min_constraints: Annotated[int, Meta(ge=1, description="Fewest constraints of a problem.")] = 1
    max_constraints: Annotated[int, Meta(ge=1, le=6, description="Most constraints of a problem.")] = 3
    kinds: Annotated[
        list[str], Meta(description=f"Only constraints of these kinds: {', '.join(KINDS)}; none: all of them.")
    ] = []


class _Drawn(msgspec.Struct, frozen=True):
    topic: str
    constraints: list[Constraint]

    @property
    def text(self) -> str:
        asked = _ASKED.format(topic=self.topic)
        return "\n".join([asked, "", *(f"- {told(each)}" for each in self.constraints)])


class Instructions(MadeUp[InstructionsArgs]):
    """Follow instructions that can be checked.

    Task: write a text about a topic that meets one to six constraints: how many words, sentences, paragraphs or bullet
    points it has, words that are in it or not, how it begins and ends, capitals, commas, JSON.
    Data: drawn by the seed; of each problem a text is known that meets all of its constraints. An eighth of all
    problems is held out. Licence: ours.
    Arguments: `min_constraints`, `max_constraints`, `kinds`, `train_count`, `eval_count`, `seed`.
    Reward: the share of constraints that the last reply meets, where lines that only repeat the task do not count; 0
    for what is no text: fewer than three words, more than 20,000 characters, or one word for over two fifths of it.
    Nobody looks whether it is about the topic or makes sense: words in any order that meet the constraints score as
    well. Metric `all_met`: 1 where none is left.
    Checked: of 1,000 problems with the defaults, the known texts score 1.00, words at random .17 (1 in 80 meets all),
    one and the same piece of prose .08, the task repeated 0.
    """

    name = "instructions"
    args_type = InstructionsArgs

    def __init__(self, args: InstructionsArgs) -> None:
        super().__init__(args)
        if unknown := set(args.kinds) - set(KINDS):
            raise ValueError(f"kinds: {', '.join(sorted(unknown))} is none of {', '.join(KINDS)}")
        self._kinds = [kind for kind in KINDS if not args.kinds or kind in args.kinds]
        for split in Split:
            self.problem(split, 0)

    def problem(self, split: Split, index: int) -> Problem:
        drawn = of_split(split, f"{self.args.seed}/{split}/{index}", self._draw, lambda drawn: drawn.text)
        return Problem(
            key=digest(drawn.text)[:16],
            messages=[Message("user", drawn.text)],
            data=msgspec.to_builtins(drawn),
        )

    def reward(self, problem: Problem, rollout: FinishedRollout) -> float:
        """See the class."""
        constraints = msgspec.convert(problem.data, _Drawn).constraints
        said = replies.answer(problem, rollout)
        text = _own_lines(said, problem.messages[-1].text) if len(said) <= LONGEST else ""
        met = [is_text(text) and holds(each, text) for each in constraints]
        rollout.metrics["all_met"] = float(all(met))
        return sum(met) / len(met)

    def solution(self, problem: Problem) -> list[Message]:
        drawn = msgspec.convert(problem.data, _Drawn)
        return [*problem.messages, Message("assistant", written(drawn.topic, drawn.constraints))]

    def _draw(self, draws: Draws) -> _Drawn:
        """A problem that can be solved: constraints are drawn until a text is found that meets them all."""
        for _ in range(_MAX_DRAWS):
            count = draws.between(self.args.min_constraints, self.args.max_constraints)
            kinds = self._compatible(draws, count)
            constraints = [_constraint(kind, draws) for kind in kinds]
            drawn = _Drawn(draws.pick(TOPICS), constraints)
            if len(kinds) == count and _is_solved(drawn):
                return drawn
        raise ValueError(
            f"kinds: {', '.join(self._kinds)} give no {self.args.min_constraints} constraints that go together; "
            "lower min_constraints or name more kinds"
        )

    def _compatible(self, draws: Draws, count: int) -> list[str]:
        """At most so many kinds that go together, in a drawn order."""
        asking = [kind for kind in self._kinds if kind not in _PASSIVE]
        found = [draws.pick(asking or self._kinds)]
        for kind in draws.sample(self._kinds, len(self._kinds)):
            if len(found) < count and kind not in found and all(_go_together(kind, other) for other in found):
                found.append(kind)
        return draws.sample(found, count)


def _own_lines(text: str, asked: str) -> str:
    """The text without lines that only repeat the task, which has words and bullet points itself."""
    known = {line.strip().casefold() for line in asked.splitlines() if line.strip()}
    return "\n".join(line for line in text.splitlines() if line.strip().casefold() not in known)


def _go_together(one: str, other: str) -> bool:
    return other in _BESIDE.get(one, {other}) and one in _BESIDE.get(other, {one})


def _constraint(kind: str, draws: Draws) -> Constraint:
    if kind == "words":
        return Constraint(kind=kind, relation=draws.pick(_RELATIONS), number=draws.between(12, 60))
    if kind == "few_words":
        return Constraint(kind=kind, relation="at most", number=draws.between(8, 40))
    if kind == "sentences":
        return Constraint(kind=kind, relation=draws.pick(_RELATIONS), number=draws.between(2, 6))
    if kind in ("paragraphs", "bullets"):
        return Constraint(kind=kind, number=draws.between(2, 5))
    if kind == "include":
        number = draws.between(1, 3)
        return Constraint(kind=kind, relation=draws.pick(_RELATIONS), number=number, text=draws.pick(_INCLUDED))
    if kind == "nth_word":
        return Constraint(kind=kind, number=draws.between(2, 9), text=draws.pick(_INCLUDED))
    if kind == "json":
        return Constraint(kind=kind, keys=draws.sample(_KEYS, draws.between(2, 4)))
    texts: dict[str, Sequence[str]] = {"exclude": _EXCLUDED, "starts": _STARTS, "ends": _ENDS}
    return Constraint(kind=kind, text=draws.pick(texts[kind]) if kind in texts else "")


def _is_solved(drawn: _Drawn) -> bool:
    text = written(drawn.topic, drawn.constraints)
    return is_text(text) and all(holds(each, text) for each in drawn.constraints)
