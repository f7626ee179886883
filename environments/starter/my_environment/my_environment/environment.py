"""my_environment: put the letters of a word into the order of the alphabet."""

from typing import Annotated

from msgspec import Meta

from environments.library.draws import Draws, of_split
from environments.library.made_up import MadeUp, MadeUpArgs
from environments.rewards import replies
from environments.types import FinishedRollout, Message, Problem, Split

_SYSTEM = "Sort the letters of the word by the alphabet. Your reply has them in <answer></answer>."
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class MyEnvironmentArgs(MadeUpArgs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of my_environment: what `args` of a run may say."""

    min_letters: Annotated[int, Meta(ge=4, description="Fewest letters of a word.")] = 5
    max_letters: Annotated[int, Meta(ge=4, le=64, description="Most letters of a word.")] = 8


class MyEnvironment(MadeUp[MyEnvironmentArgs]):
    """Sort the letters of a word.

    Task: say which letters a made-up word has, in the order of the alphabet, in `<answer>`.
    Data: letters drawn by the seed; an eighth of all words is held out. Licence: say here which one.
    Reward: 1 for the letters in order, else 0. Metric: `answered`, whether there is an answer at all.
    Checked: by the kit; say here what else you know of it.
    """

    name = "my_environment"
    version = "1"  # raise it whenever the same key would mean another problem or another score
    args_type = MyEnvironmentArgs

    def problem(self, split: Split, index: int) -> Problem:
        """The same one every time, in every process, and of one split alone: `of_split` sees to both."""
        word = of_split(split, f"my_environment/{self.args.seed}/{split}/{index}", self._word, str)
        return Problem(
            key=word,
            messages=[Message("system", _SYSTEM), Message("user", word)],
            data={"answer": "".join(sorted(word))},
        )

    def reward(self, problem: Problem, rollout: FinishedRollout) -> float:
        """Score the last reply, which may be anything at all."""
        said = replies.in_tag(replies.answer(problem, rollout), "answer")
        rollout.metrics["answered"] = float(said is not None)
        return float(said is not None and said.strip() == problem.data["answer"])

    def solution(self, problem: Problem) -> list[Message]:
        """What a model may imitate before it is trained."""
        return [*problem.messages, Message("assistant", f"<answer>{problem.data['answer']}</answer>")]

    def _word(self, draws: Draws) -> str:
        letters = draws.between(self.args.min_letters, self.args.max_letters)
        return "".join(draws.pick(_LETTERS) for _ in range(letters))
