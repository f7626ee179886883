"""reasoning_gym: the made-up puzzles of the library of that name, each with a scorer of its own. One turn.

    environments = [{name = "reasoning_gym", python = "reasoning_gym", args = {id = "countdown"}}]

Some of its scorers evaluate what was answered, which is a formula or a list there and no other Python
(`environments.bridges.reasoning_gym_answers`); an answer that would call Python's own functions is shown to no scorer.
The library runs in a process beside the one that plays (`environments.bridges.reasoning_gym_worker`), which is killed
when an answer takes seconds. Both are in the environment's room, without a network.
"""

import asyncio
import builtins
import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import msgspec
from msgspec import Meta

from environments.bridges.reasoning_gym_worker import PuzzleItem, Worker
from environments.env import Environment
from environments.library.splits import digest, is_held_out
from environments.rewards.replies import answer, in_tag
from environments.types import FinishedRollout, JsonObject, Message, Problem, Split

_REFUSED = {
    "composite": "name one of the data sets that it would mix, or several environments",
    "game_of_life_halting": "its scorer gives the full reward to nonsense",
    "list_functions": "its seed does not decide its questions",
    "puzzle24": "its scorer gives the full reward to other numbers than those of the question",
}
_EVAL_SEEDS = 2**30
_DRAW_SEEDS = 2**20
"""How far apart the seeds of further draws lie; there are fewer problems than that."""
_MAX_DRAWS = 64
_MOST_ANSWER = 10_000
"""Characters."""
_SCORING_S, _MAKING_S = 3.0, 60.0
_CALLABLE = "|".join(name for name in dir(builtins) if callable(getattr(builtins, name)) and name.isidentifier())
_CODE = re.compile(rf"__|\blambda\b|\b(?:{_CALLABLE})\s*\(")
_NO_NUMBER = re.compile(r"\b(?:nan|inf|infinity)\b", re.IGNORECASE)
"""Every comparison with it is false, so what only looks for a difference finds none."""
_HARMLESS = re.compile(r"\b(?:abs|min|max|pow|round|sum)\s*\(")
_SYSTEM = "Solve the problem. Write your final answer, and nothing else, between <answer> and </answer>."


class ReasoningGymArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of reasoning_gym."""

    id: Annotated[str, Meta(min_length=1, description="Name of the data set, as `create_dataset` takes it.")]
    options: Annotated[
        JsonObject, Meta(description="Further arguments of the data set: how hard its problems are.")
    ] = {}
    system_prompt: Annotated[str, Meta(description="What the policy is told of the form of an answer.")] = _SYSTEM
    first_seed: Annotated[int, Meta(ge=0, lt=2**29, description="Seed of problem 0 of either split.")] = 0
    train_count: Annotated[int, Meta(ge=1, lt=_DRAW_SEEDS, description="Problems to train on.")] = 10_000
    eval_count: Annotated[int, Meta(ge=1, lt=_DRAW_SEEDS, description="Held-out problems.")] = 256


class ReasoningGym(Environment[ReasoningGymArgs]):
    """Solve puzzles of a data set of reasoning_gym.

    Task: the question of the data set, with the answer in <answer> tags.
    Data: made by reasoning_gym (Apache-2.0) from seeds; an eighth of all questions is held out, by their text.
    Reward: the data set's own scorer, from 0 to 1. Nothing for answers of more than 10,000 characters, those that would
    run code or are no number (NaN), and those on which the scorer fails or takes more than 3 s of the processor.
    Checked: the 102 data sets of 0.1.25 that are played, on 4 problems each. The answers of those that know one earn 1,
    those of other problems mostly nothing, hostile ones at most .33 (the share of an answer that is the right one), and
    nothing where they would have the scorer run code, or read there what it knows.
    """

    name = "reasoning_gym"
    version = "2"
    args_type = ReasoningGymArgs

    def __init__(self, args: ReasoningGymArgs) -> None:
        """Raises ValueError, which names the argument."""
        super().__init__(args)
        self.version = f"{type(self).version}+reasoning_gym-{version('reasoning-gym')}"  # type: ignore[misc]  # scores may change with it
        if args.id in _REFUSED:
            raise ValueError(f"id {args.id!r} is not played: {_REFUSED[args.id]}")
        self._worker = Worker()
        self._newest: tuple[PuzzleItem | None, JsonObject] = (None, {})
        if args.id not in (names := self._worker.names()):
            raise ValueError(f"id {args.id!r} is none of {', '.join(sorted({*names} - {*_REFUSED}))}")
        try:
            self._entry(self._item(Split.TRAIN, 0, 0))
        except ValueError as error:
            raise ValueError(f"options {args.options} do not suit {args.id}: {error}") from None

    def count(self, split: Split) -> int:
        return self.args.train_count if split is Split.TRAIN else self.args.eval_count

    def problem(self, split: Split, index: int) -> Problem:
        """Draw until a question belongs to the split, which its text alone decides."""
        for draw in range(_MAX_DRAWS):
            question: str = self._entry(self._item(split, draw, index))["question"]
            if is_held_out(question) == (split is Split.EVAL):
                return Problem(
                    key=f"{self.args.id}:{digest(question)[:16]}",
                    messages=[Message("system", self.args.system_prompt), Message("user", question)],
                    data={"split": split.value, "draw": draw, "index": index},
                )
        raise ValueError(f"{self.args.id} has too few different questions for the {split} split: raise its options")

    async def score_group(self, problem: Problem, rollouts: Sequence[FinishedRollout]) -> Sequence[float | Exception]:
        """See the class. Metrics: `solved`, whether it is 1, and `unscored`, whether the scorer gave nothing."""
        scores = []
        for rollout in rollouts:
            score = await asyncio.to_thread(self._score, problem, _said(problem, rollout))
            rollout.metrics["solved"] = float(score == 1.0)
            rollout.metrics["unscored"] = float(score is None)
            scores.append(score or 0.0)
        return scores

    def solution(self, problem: Problem) -> list[Message] | None:
        """The answer that the data set knows; some only know whether one is right."""
        known = self._entry(self._item_of(problem))["answer"]
        return None if known is None else [*problem.messages, Message("assistant", f"<answer>{known}</answer>")]

    def _score(self, problem: Problem, said: str) -> float | None:
        is_code = _CODE.search(_HARMLESS.sub("(", said)) is not None
        if not said or len(said) > _MOST_ANSWER or is_code or _NO_NUMBER.search(said):
            return None
        item, question = self._item_of(problem), problem.messages[-1].text
        score = self._worker.score(item, question, said, making_s=_MAKING_S, deadline_s=_SCORING_S)
        return None if score is None else min(max(score, 0.0), 1.0)

    def _item_of(self, problem: Problem) -> PuzzleItem:
        data = problem.data
        return self._item(Split(data["split"]), data["draw"], data["index"])

    def _item(self, split: Split, draw: int, index: int) -> PuzzleItem:
        seed = self.args.first_seed + draw * _DRAW_SEEDS + (_EVAL_SEEDS if split is Split.EVAL else 0)
        return PuzzleItem(self.args.id, self.args.options, seed, self.count(split), index)

    def _entry(self, item: PuzzleItem) -> JsonObject:
        if self._newest[0] != item:
            self._newest = (item, self._worker.entry(item, _MAKING_S))
        return self._newest[1]


def _said(problem: Problem, rollout: FinishedRollout) -> str:
    told = answer(problem, rollout)
    tagged = in_tag(told, "answer")
    return (told if tagged is None else tagged).strip()
