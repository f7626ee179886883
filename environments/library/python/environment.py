"""python: answer a sum that is too large for the head, with a tool that runs Python in a sandbox."""

import json
from typing import Annotated

from msgspec import Meta

from environments.env import PolicySession
from environments.library.draws import of_split
from environments.library.made_up import MadeUp, MadeUpArgs
from environments.library.python import problems as python_problems
from environments.library.python.problems import LEVELS
from environments.library.tool_calls import FAILED, answer_calls, answers_of, text_argument, tool
from environments.rewards.replies import answer, in_tag
from environments.sandbox.tools import SandboxLimits, run
from environments.types import FinishedRollout, FunctionCall, Message, Problem, Split, ToolCall

_SYSTEM = (
    "Answer with a number in <answer></answer>. You may call the tool python, which runs a program and returns what it "
    "prints."
)
_NAME, _ARGUMENT = "python", "code"
_TOOL = tool(_NAME, "Run a Python program. Nothing is kept between calls.", code="The program; it prints its result.")
_SHOWN_OUTPUT, _SHOWN_ERRORS = 2_000, 500
"""Characters."""
_LONGEST_CODE = 20_000
_LONGEST_ANSWER = 1_000
_RIGHT, _FOUND, _RAN = 1.0, 0.3, 0.1
"""Rewards: of the right answer after a call that ran, of a program that found it, of any program that ran."""


class PythonToolArgs(MadeUpArgs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of python."""

    min_level: Annotated[int, Meta(ge=1, le=LEVELS, description="Easiest problems.")] = 1
    max_level: Annotated[int, Meta(ge=1, le=LEVELS, description="Hardest problems.")] = LEVELS
    max_calls: Annotated[int, Meta(ge=1, le=64, description="Calls that are answered, per episode.")] = 4
    call_s: Annotated[float, Meta(gt=0, le=60, description="Seconds that a call may take.")] = 5.0


class PythonTool(MadeUp[PythonToolArgs]):
    """Answer sums that are too large for the head, with a tool that runs Python.

    Task: a question whose answer is a whole number; calls of `python(code)`, then the number in `<answer>`.
    Data: 15 families (digits, primes, dates, combinatorics, small simulations) in 3 levels, made up by seed, of this
        project (Apache-2.0).
    Arguments: levels, how many calls are answered, seconds for each.
    Reward: 1 for the right answer after a call that ran, .3 if a program's last word is the answer, .1 if any ran.
    Checked: the solution of each of 200 held-out problems gives 1, and its program prints the answer in the sandbox;
        random text and an answer without a call, even a right one, give 0; an empty program and a guess give .1.
        None of 79 programs that try to leave the sandbox does, and each ends within its limit.
    """

    name = "python"
    args_type = PythonToolArgs

    def problem(self, split: Split, index: int) -> Problem:
        levels = (self.args.min_level, self.args.max_level)
        seed = f"python/{self.args.seed}/{split}/{index}"
        posed = of_split(split, seed, lambda draws: python_problems.draw(draws, levels), lambda drawn: drawn.name)
        return Problem(
            key=posed.name,
            messages=[Message("system", _SYSTEM), Message("user", posed.words)],
            data={"answer": posed.answer, "program": posed.program},
            tools=[_TOOL],
        )

    async def play(self, problem: Problem, session: PolicySession) -> None:
        """Answer calls until the policy makes none, or too many."""
        await answer_calls(problem, session, self._answered, self.args.max_calls)

    def reward(self, problem: Problem, rollout: FinishedRollout) -> float:
        """1 for the right answer after a call that ran, .3 if a program's last word was the answer, .1 if any ran."""
        right = problem.data["answer"]
        outputs = answers_of(rollout)
        ran = [output for output in outputs if not output.startswith(FAILED)]
        told = in_tag(answer(problem, rollout), "answer")
        is_right = told is not None and len(told) < _LONGEST_ANSWER and told.strip().replace(",", "") == right
        has_found = any(output.split()[-1:] == [right] for output in ran)
        rollout.metrics |= {"right": float(is_right), "calls": float(len(outputs)), "ran": float(len(ran))}
        return 0.0 if not ran else _RIGHT if is_right else _FOUND if has_found else _RAN

    def solution(self, problem: Problem) -> list[Message]:
        right = problem.data["answer"]
        call = ToolCall("call_1", FunctionCall(_NAME, json.dumps({_ARGUMENT: problem.data["program"]})))
        return [
            *problem.messages,
            Message("assistant", "", tool_calls=[call]),
            Message("tool", right, tool_call_id="call_1"),
            Message("assistant", f"<answer>{right}</answer>"),
        ]

    async def _answered(self, function: FunctionCall) -> str:
        """What a program prints, or what is wrong with it. Raises SandboxUnavailable."""
        code = text_argument(function, _NAME, _ARGUMENT)
        if code is None or len(code) > _LONGEST_CODE:
            return f"{FAILED} call {_NAME} with one text, {_ARGUMENT}, of at most {_LONGEST_CODE} characters"
        done = await run(
            ["python3", "-I", "main.py"],
            files={"main.py": code.encode(errors="replace")},
            limits=SandboxLimits(wall_s=self.args.call_s, cpu_s=self.args.call_s, memory_bytes=256 * 2**20),
        )
        output = done.output.strip()
        if len(output) > _SHOWN_OUTPUT:
            output = f"{output[:_SHOWN_OUTPUT]}\n(and more)"
        if done.succeeded:
            return output or "(it printed nothing)"
        if done.ended != "exit":
            reason = f"it was ended at its limit of {done.ended}"
        else:
            reason = done.errors.strip()[-_SHOWN_ERRORS:] or "it failed"
        return f"{FAILED} {reason}\n{output}".strip()
