"""gsm8k: word problems whose answer is a whole number, with a solution in words."""

import re
from collections.abc import Sequence

from environments.library.data.sets import DataSetArgs, DataSetEnvironment, Question, Unusable, required, text_in
from environments.rewards.registry import RewardPart
from environments.types import JsonObject, Message, Problem

_MARK = "####"
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_CALCULATION = re.compile(r"<<[^<>]*>>")
"""What a calculator was asked for, in the solutions: `<<48/2=24>>`."""


class Gsm8kArgs(DataSetArgs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of gsm8k."""


class Gsm8k(DataSetEnvironment[Gsm8kArgs]):
    r"""Word problems of primary school, of two to eight steps each.

    Task: solve a problem in words and give the number it asks for in \boxed{}.
    Data: rows {question, answer}, whose answer ends in `#### 42`. Made for `openai/gsm8k` (Cobbe et al. 2021,
    arXiv:2110.14168; 7,473 problems to train on, 1,319 held out; MIT licence), config `main`. Not part of Rollyard.
    Arguments: `data`, `config`, `train_split`, `eval_split`, `system`, `instruction`, `seed`, `rewards`.
    Reward: `math`, 1 for a number that equals the answer, units or not.
    Checked: on files of the same form; an answer in a box scores 1, another number and the question itself 0.
    """

    name = "gsm8k"
    version = "5"
    args_type = Gsm8kArgs
    default_rewards = (RewardPart(name="math", args={"amounts": True}),)
    default_instruction = r"Reason step by step, and put the final number into \boxed{}."

    def reads(self, columns: Sequence[str]) -> Sequence[str]:
        return required(self.args.data, columns, "question", "answer")

    def question(self, row: JsonObject) -> Question:
        worked, mark, final = text_in(row, "answer").rpartition(_MARK)
        number = final.strip().replace(",", "").removeprefix("$")
        if not mark or not _NUMBER.fullmatch(number):
            raise Unusable(f"answer has no number behind {_MARK}")
        return Question(text_in(row, "question"), {"answer": number, "worked": worked.strip()})

    def solution(self, problem: Problem) -> list[Message]:
        worked = _CALCULATION.sub("", problem.data["worked"])
        boxed = rf"\boxed{{{problem.data['answer']}}}"
        return [*problem.messages, Message("assistant", f"{worked}\n{boxed}" if worked else boxed)]
