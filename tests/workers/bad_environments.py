"""Environments that do everything wrong, one way each, and one that does nothing wrong. Runs in their own process."""

import asyncio
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from environments.env import Environment, PolicySession
from environments.sandbox.tools import run
from environments.types import FinishedRollout, Message, PlayedRollout, Problem, Split


class Kind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is wrong."""

    kind: str


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def _fork_bomb() -> None:
    while True:
        os.fork()


def _hold_the_lock() -> None:
    sum(range(10**13))  # one call of C: no other thread has a turn


def _flood() -> None:
    line = b"x" * 4095 + b"\n"
    while True:
        os.write(2, line)


def _print_for_ever() -> None:
    while True:
        print("and again", "y" * 4_000)


def _steal() -> None:
    while True:  # the driver's calls, which are read from a copy of stdin
        for descriptor in range(3, 64):
            try:
                os.read(descriptor, 65_536)
            except OSError:
                continue


def _babble() -> None:
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b"\xff\xff\xff\xffnonsense")
        except OSError:
            continue
    time.sleep(60)


def _answer_nobody() -> None:
    body = msgspec.msgpack.encode([999_999, None, None])
    for descriptor in range(3, 64):
        try:
            for _ in range(3_000):
                os.write(descriptor, len(body).to_bytes(4, "big") + body)
        except OSError:
            continue
    time.sleep(60)


def _many_threads() -> None:
    for _ in range(20_000):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()


def _deep() -> Any:
    def dig(depth: int) -> int:
        return dig(depth + 1) + 1

    sys.setrecursionlimit(2**30)
    return dig(0)


def _grow() -> None:
    held = []
    while True:
        held.append(bytearray(os.urandom(1)) * 2**26)


def _interrupt() -> None:
    # Whoever is started in the background of a shell ignores it, and so does everything below.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.raise_signal(signal.SIGINT)


IN_STEP: dict[str, Callable[[], Any]] = {
    "segfault": lambda: ctypes.string_at(0),
    "abort": lambda: os.abort(),
    "exit": lambda: os._exit(3),
    "system exit": lambda: sys.exit("leaving"),
    "interrupt": _interrupt,
    "kills its parent": lambda: [os.kill(os.getppid(), signal.SIGKILL), time.sleep(60)],
    "fork bomb": _fork_bomb,
    "ten gigabytes": lambda: bytes(10 * 2**30) + b"x",
    "grows": _grow,
    "many threads": _many_threads,
    "holds the lock": _hold_the_lock,
    "blocks": lambda: time.sleep(3_600),
    "floods stderr": _flood,
    "prints for ever": _print_for_ever,
    "reads stdin": lambda: sys.stdin.read() and None,
    "steals calls": _steal,
    "babbles": _babble,
    "answers nobody": _answer_nobody,
    "closes everything": lambda: os.closerange(0, 64),
    "raises": lambda: {}["nothing"],
    "unprintable": lambda: (_ for _ in ()).throw(Unprintable()),
    "unencodable": lambda: (_ for _ in ()).throw(ValueError("lone \udc80 surrogate")),
    "nested error": _deep,
    "wrong type": lambda: 7,
    "no message": lambda: [{"role": "user"}],
    "speaks as the assistant": lambda: [Message("assistant", "mine")],
    "huge reply": lambda: [Message("user", "x" * (64 * 2**20))],
    "surrogates": lambda: [Message("user", "\ud800")],
}
"""What happens when it is to answer a reply."""
ELSEWHERE = (
    *("no problems", "half a problem", "hangs in problem", "raises in count", "never asks"),
    *("not a number", "infinite", "text for a reward", "too few scores", "odd metrics", "hangs in scoring", "waits"),
)
KINDS = (*IN_STEP, *ELSEWHERE)


class Good(Environment[Kind]):
    """It answers once, and gives a reward."""

    name = "good"
    args_type = Kind

    def count(self, split: Split) -> int:
        return 1_000

    def problem(self, split: Split, index: int) -> Problem:
        return Problem(key=f"{split}-{index}", messages=[Message("user", "hi")])

    async def start(self, problem: Problem) -> dict[str, int]:
        return {"turns": 0}

    async def step(self, state: dict[str, int], reply: Message) -> list[Message] | None:
        state["turns"] += 1
        return [Message("user", "go on")] if state["turns"] < 2 else None

    def reward(self, problem: Problem, rollout: PlayedRollout) -> float:
        return float(len(rollout.token_ids) % 3)


class Bad(Good):
    """The same, but for one thing."""

    name = "bad"

    def count(self, split: Split) -> int:
        if self.args.kind == "raises in count":
            raise RuntimeError("cannot count")
        return 0 if self.args.kind == "no problems" else 1_000

    def problem(self, split: Split, index: int) -> Problem:
        if self.args.kind == "half a problem":
            return {"key": "k"}  # type: ignore[return-value]
        if self.args.kind == "hangs in problem":
            time.sleep(3_600)
        return super().problem(split, index)

    async def step(self, state: dict[str, int], reply: Message) -> list[Message] | None:
        if self.args.kind == "runs code":
            done = await run(["python3", "main.py"], {"main.py": reply.text})
            return [Message("user", done.output)]
        if self.args.kind == "waits":
            await asyncio.Event().wait()
        if (act := IN_STEP.get(self.args.kind)) is not None:
            answer: list[Message] | None = act()
            return answer
        return await super().step(state, reply)

    async def score_group(self, problem: Problem, rollouts: Sequence[FinishedRollout]) -> Sequence[float | Exception]:
        match self.args.kind:
            case "not a number":
                return [float("nan")] * len(rollouts)
            case "infinite":
                return [float("inf")] * len(rollouts)
            case "text for a reward":
                return ["good"] * len(rollouts)  # type: ignore[list-item]
            case "too few scores":
                return [1.0]
            case "odd metrics":
                for rollout in rollouts:
                    rollout.metrics["x"] = float("nan")
            case "hangs in scoring":
                time.sleep(3_600)
        return [1.0 for _ in rollouts]


class BadPlayer(Bad):
    """One that plays its episodes itself."""

    name = "bad_player"

    async def play(self, problem: Problem, session: PolicySession) -> None:
        return


def place(kind: str) -> str:
    """Which class has it."""
    return f"bad_environments:{'BadPlayer' if kind == 'never asks' else 'Bad'}"
