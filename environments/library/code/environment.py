"""code: write a function or a program that passes tests which the policy does not see, run in a sandbox."""

from typing import Annotated

from msgspec import Meta

from environments.library.code import families as code_families
from environments.library.code.families import FUNCTION, LEVELS, STEPS, Chains
from environments.library.code.rows import CodeRow, CodeRows
from environments.library.draws import of_split
from environments.library.judged import Judged
from environments.library.made_up import MadeUp, MadeUpArgs
from environments.rewards.judged_code import judge as code_judge
from environments.rewards.judged_code.assertions import Assertion
from environments.rewards.judged_code.judge import InputAndOutput, Test
from environments.rewards.replies import answer, in_fence
from environments.types import FinishedRollout, Message, Problem, Split

_SYSTEM = "Write Python. Your reply has the whole code in one block between lines of three backticks."
_HIDDEN = 12
"""Tests that the policy does not see."""
_LONGEST_CODE = 50_000
"""Characters. Longer code passes nothing."""


class CodeArgs(MadeUpArgs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of code."""

    data: Annotated[str, Meta(description="A file or directory with problems; empty: problems of our own.")] = ""
    skip_unusable: Annotated[bool, Meta(description="Leave out rows of the file that cannot be used.")] = False
    min_level: Annotated[int, Meta(ge=1, le=LEVELS, description="Easiest problems of our own.")] = 1
    max_level: Annotated[int, Meta(ge=1, le=LEVELS, description="Hardest problems of our own.")] = LEVELS
    min_steps: Annotated[int, Meta(ge=1, le=STEPS, description=f"Fewest steps of a chain: level {LEVELS}.")] = 3
    max_steps: Annotated[int, Meta(ge=1, le=STEPS, description=f"Most steps of a chain: level {LEVELS}.")] = 5
    number: Annotated[
        int, Meta(ge=0, description="In every step of a chain, or the nearest that makes sense there; 0: any number.")
    ] = 0
    examples: Annotated[int, Meta(ge=0, le=10, description="Examples in the words of problems of our own.")] = 3
    partial: Annotated[float, Meta(ge=0, lt=1, description="Reward of passing nearly all tests.")] = 0.5
    test_s: Annotated[
        float, Meta(gt=0, le=60, description="Seconds of the processor for a test; of the clock five times as many.")
    ] = 2.0
    wall_s: Annotated[float, Meta(gt=0, le=120, description="The same for all tests together.")] = 10.0


class Code(Judged[CodeArgs], MadeUp[CodeArgs]):
    """Write a Python function or program that passes hidden tests.

    Task: a description and some examples; the reply has the code in its last fenced block.
    Data: 17 families of functions and chains of steps, made up by seed, in 4 levels, of this project (Apache-2.0); or
        rows of your own files in the layouts of MBPP, HumanEval and APPS, whose licence is theirs: split as their names
        say it, else an eighth is held out.
    Arguments: levels and steps or a file, the limits of time, the reward of passing some tests.
    Reward: 1 for all tests, else `partial` times the share passed; nothing where a constant would pass as many.
    Checked: by running them. The solution of each of 40 held-out problems gives 1; random text, no code and constants
        give 0, a function that returns its argument .006 on average; 50 ways to cheat give 0 and end in time.
    """

    name = "code"
    version = "6"
    args_type = CodeArgs

    def __init__(self, args: CodeArgs) -> None:
        super().__init__(args)
        self._rows = CodeRows(args.data, skip_unusable=args.skip_unusable) if args.data else None

    def count(self, split: Split) -> int:
        return super().count(split) if self._rows is None else self._rows.count(split)

    def problem(self, split: Split, index: int) -> Problem:
        if self._rows is not None:
            return _of_row(self._rows.row(split, index))
        levels = (self.args.min_level, self.args.max_level)
        chains = Chains(self.args.min_steps, self.args.max_steps, self.args.number)
        seed = f"code/{self.args.seed}/{split}/{index}"
        posed = of_split(split, seed, lambda draws: code_families.draw(draws, levels, chains), lambda drawn: drawn.name)
        examples = posed.examples(posed.name, self.args.examples + _HIDDEN)
        shown, hidden = examples[: self.args.examples], examples[self.args.examples :]
        words = [f"Write a function `{FUNCTION}({posed.argument})` that {posed.words}."]
        if shown:
            words += ["\nExamples:", *(f"{FUNCTION}({given!r}) == {right!r}" for given, right in shown)]
        return Problem(
            key=posed.name,
            messages=_asked("\n".join(words)),
            data={
                "tests": [f"assert {FUNCTION}({given!r}) == {right!r}" for given, right in hidden],
                "functions": [FUNCTION],
                "solution": posed.source,
            },
        )

    async def judge(self, problem: Problem, rollout: FinishedRollout) -> float:
        """1 for all tests, else `partial` times the share passed. Raises SandboxUnavailable."""
        code = in_fence(answer(problem, rollout))
        rollout.metrics["has_code"] = float(code is not None)
        rollout.metrics["tests_passed"] = 0.0
        if code is None or len(code) > _LONGEST_CODE:
            return 0.0
        args = self.args
        found = await code_judge.passed(
            code,
            _tests(problem),
            test_s=args.test_s,
            wall_s=args.wall_s,
            packages=bool(args.data),
            imported=problem.data.get("imported", ""),
            holder=problem.data.get("holder", ""),
        )
        results = [bool(each) for each in found]
        share = sum(results) / len(results)
        rollout.metrics["tests_passed"] = share
        if share == 1:
            return 1.0
        rights = [repr(_right(test)) for test in _tests(problem)]
        return 0.0 if _is_constant(rights, results) else self.args.partial * share

    def solution(self, problem: Problem) -> list[Message] | None:
        if not (source := problem.data["solution"].strip()):
            return None
        return [*problem.messages, Message("assistant", f"```python\n{source}\n```")]


def _of_row(row: CodeRow) -> Problem:
    words = f"{row.words}\n\nBegin with this:\n```python\n{row.starter}\n```" if row.starter else row.words
    if "pairs" in row.data:
        words += "\n\nYour program reads its input from stdin and prints its output."
    return Problem(key=row.key, messages=_asked(words), data=row.data | {"solution": row.solution})


def _asked(words: str) -> list[Message]:
    return [Message("system", _SYSTEM), Message("user", words)]


def _tests(problem: Problem) -> list[Test]:
    if pairs := problem.data.get("pairs"):
        return [InputAndOutput(*pair) for pair in pairs]
    functions = set(problem.data["functions"])
    as_json = problem.data.get("as_json", False)
    return [[Assertion(source, functions, as_json=as_json)] for source in problem.data["tests"]]


def _right(test: Test) -> object:
    return test.output if isinstance(test, InputAndOutput) else test[0].expected()


def _is_constant(rights: list[str], results: list[bool]) -> bool:
    """Whether what passed has one right answer, as if the code always said the same, and other tests have others."""
    passed = {right for right, has_passed in zip(rights, results, strict=True) if has_passed}
    return len(passed) <= 1 < len(set(rights))
