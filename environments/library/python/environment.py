"""python: answer a sum that is too large for the head, with a tool that runs Python in a sandbox."""

import json
from typing import Annotated

import msgspec
from msgspec import Meta

from environments.env import Environment, PolicySession
from environments.library.draws import of_split
from environments.library.python import problems as python_problems
from environments.library.python.problems import LEVELS
from environments.library.tool_texts import answers_of, text_argument, tool
from environments.rewards.replies import answer, in_tag
from environments.sandbox.tools import SandboxLimits, run
from environments.types import FinishedRollout, FunctionCall, Message, Problem, Split, ToolCall

_SYSTEM = (
    "Answer with a number in <answer></answer>. You may call the tool python, which runs a program and returns what it "
    "prints."
)
_NAME, _ARGUMENT = "python", "code"
_TOOL = tool(_NAME, "Run a Python program. Nothing is kept between calls.", code="The program; it prints its result.")
_FAILED = "error:"
"""How the answer to a call that did not run begins."""
_SHOWN_OUTPUT, _SHOWN_ERRORS = 2_000, 500
"""Characters."""
_LONGEST_CODE = 20_000
_LONGEST_ANSWER = 1_000
_RIGHT, _FOUND, _RAN = 1.0, 0.3, 0.1
"""Rewards: of the right answer after a call that ran, of a program that found it, of any program that ran."""


class PythonToolArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of python."""

    min_level: Annotated[int, Meta(ge=1, le=LEVELS, description="Easiest problems.")] = 1
    max_level: Annotated[int, Meta(ge=1, le=LEVELS, description="Hardest problems.")] = LEVELS
    max_calls: Annotated[int, Meta(ge=1, le=64, description="Calls that are answered, per episode.")] = 4
    call_s: Annotated[float, Meta(gt=0, le=60, description="Seconds that a call may take.")] = 5.0
    train_count: Annotated[int, Meta(ge=1, description="Problems to train on.")] = 10_000
    eval_count: Annotated[int, Meta(ge=1, description="Held-out problems.")] = 256
    seed: Annotated[int, Meta(description="Seed of the problems.")] = 0


class PythonTool(Environment[PythonToolArgs]):
    """Answer sums that are too large for the head, with a tool that runs Python.

    Task: a question whose answer is a whole number; calls of `python(code)`, then the number in `<answer>`.
    Data: 15 families (digits, primes, dates, combinatorics, small simulations) in 3 levels, made up by seed, of this
        project (Apache-2.0).
    Arguments: levels, how many calls are answered, seconds for each.
    Reward: 1 for the right answer after a call that ran, .3 if a program's last word is the answer, .1 if any ran.
    Checked: the solution of each of 200 held-out problems gives 1, and its program prints the answer in the sandbox;
        random text and an answer without a call, even a right one, give 0; an empty program and a guess give .1.
    """

    name = "python"
    args_type = PythonToolArgs

    def __init__(self, args: PythonToolArgs) -> None:
        super().__init__(args)
        if args.min_level > args.max_level:
            raise ValueError(f"min_level {args.min_level} is above max_level {args.max_level}")

    def count(self, split: Split) -> int:
        return self.args.train_count if split is Split.TRAIN else self.args.eval_count

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
        """Answer calls until the policy makes none."""
        messages, left = list(problem.messages), self.args.max_calls
        while True:
            reply = await session.reply(messages)
            messages.append(reply)
            if not reply.tool_calls or not left:
                return
            for call in reply.tool_calls:
                told = await self._answered(call.function) if left else f"{_FAILED} no call is left"
                left -= bool(left)
                messages.append(Message("tool", told, tool_call_id=call.id))

    def reward(self, problem: Problem, rollout: FinishedRollout) -> float:
        """1 for the right answer after a call that ran, .3 if a program's last word was the answer, .1 if any ran."""
        right = problem.data["answer"]
        outputs = answers_of(rollout)
        ran = [output for output in outputs if not output.startswith(_FAILED)]
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
            return f"{_FAILED} call {_NAME} with one text, {_ARGUMENT}, of at most {_LONGEST_CODE} characters"
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
        return f"{_FAILED} {reason}\n{output}".strip()
