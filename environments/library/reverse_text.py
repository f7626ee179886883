"""reverse_text: write the given made-up words backwards. Needs no data, and a very small model can learn it.

The task and the scoring follow PRIME-RL's example of the same name; the texts are our own.
"""

import random
import re
from difflib import SequenceMatcher
from typing import Annotated

from msgspec import Meta

from environments.library.made_up import MadeUp, MadeUpArgs
from environments.library.splits import digest, is_held_out
from environments.rewards import replies
from environments.types import FinishedRollout, Message, Problem, Split

_ONSETS = [
    "b",
    "br",
    "ch",
    "d",
    "dr",
    "f",
    "g",
    "gl",
    "h",
    "j",
    "k",
    "l",
    "m",
    "n",
    "p",
    "pl",
    "r",
    "s",
    "st",
    "t",
    "v",
]
_VOWELS = ["a", "e", "i", "o", "u", "ai", "ea", "oo"]
_CODAS = ["", "", "", "l", "m", "n", "nd", "r", "rk", "s", "t"]

_SYSTEM = "Reverse the text."
_TAGGED = re.compile(r"<reversed_text>(.*?)(?:</reversed_text>|$)", re.DOTALL)
_MAX_DRAWS = 10_000
_MAX_KEY = 64
_COMPARED = 256
"""Characters compared at a time: what that costs grows with their square, and with their cube for bad replies."""


class ReverseTextArgs(MadeUpArgs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of reverse_text."""

    min_length: Annotated[int, Meta(ge=1, description="Fewest letters of a word.")] = 3
    max_length: Annotated[int, Meta(ge=1, le=64, description="Most letters of a word.")] = 8
    words: Annotated[int, Meta(ge=1, le=256, description="Words per problem.")] = 1


class ReverseText(MadeUp[ReverseTextArgs]):
    """Write the given words backwards, letter by letter.

    Task: reverse a text of made-up words; the answer may stand in a `<reversed_text>` tag.
    Data: words made of syllables by the seed; an eighth of all texts is held out. Licence: ours.
    Reward: similarity of the reply and the answer, from 0 to 1; a tag's content counts alone, thoughts not at all.
        Metric: `exact_match`.
    Checked: every solution gives 1; a tiny model learns it in 100 steps, as `make demo` shows.
    """

    name = "reverse_text"
    version = "3"
    args_type = ReverseTextArgs

    def __init__(self, args: ReverseTextArgs) -> None:
        super().__init__(args)
        for split in Split:
            self.problem(split, 0)

    def problem(self, split: Split, index: int) -> Problem:
        text = self._text(split, index)
        return Problem(
            key=_key(text),
            messages=[Message("system", _SYSTEM), Message("user", text)],
            data={"answer": text[::-1]},
        )

    def reward(self, problem: Problem, rollout: FinishedRollout) -> float:
        """Similarity of answer and reply, 0 to 1. Content of a `<reversed_text>` tag counts alone if there is one."""
        reply = replies.answer(problem, rollout)
        tagged = _TAGGED.search(reply)
        reply = (tagged.group(1) if tagged else reply).strip()
        answer: str = problem.data["answer"]
        rollout.metrics["exact_match"] = float(reply == answer)
        return _similarity(answer, reply)

    def solution(self, problem: Problem) -> list[Message]:
        return [*problem.messages, Message("assistant", problem.data["answer"])]

    def _text(self, split: Split, index: int) -> str:
        """Draw texts until one belongs to the split. Whether it does depends on the text alone: splits are disjoint."""
        rng = random.Random(f"{self.args.seed}/{split}/{index}")
        for _ in range(_MAX_DRAWS):
            text = " ".join(self._word(rng) for _ in range(self.args.words))
            if is_held_out(text) == (split is Split.EVAL):
                return text
        raise ValueError(
            f"min_length {self.args.min_length}, max_length {self.args.max_length} and words {self.args.words} leave "
            f"too few different texts for the {split} split; raise one of them"
        )

    def _word(self, rng: random.Random) -> str:
        length = self.args.min_length + int(rng.random() * (self.args.max_length - self.args.min_length + 1))
        word = ""
        while len(word) < length:
            word += _pick(rng, _ONSETS) + _pick(rng, _VOWELS) + _pick(rng, _CODAS)
        return word[:length]


def _pick(rng: random.Random, items: list[str]) -> str:
    # Only random() is promised to give the same numbers in every Python version; choice() is not.
    return items[int(rng.random() * len(items))]


def _similarity(answer: str, reply: str) -> float:
    """Twice what they have in common over both lengths, piece by piece: each with what stands at the same place."""
    common = 0
    for start in range(0, len(answer), _COMPARED):
        piece = slice(start, start + _COMPARED)
        # autojunk would pass over every common letter of 200 and more.
        matches = SequenceMatcher(None, answer[piece], reply[piece], autojunk=False).get_matching_blocks()
        common += sum(match.size for match in matches)
    return 2 * common / (len(answer) + len(reply))


def _key(text: str) -> str:
    slug = text.replace(" ", "-")
    return slug if len(slug) <= _MAX_KEY else f"{slug[: _MAX_KEY - 17]}-{digest(text)[:16]}"
