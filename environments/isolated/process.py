"""An environment in a process of its own, seen from the driver: what it answers is data, whatever its code does.

The process is asked for problems, answers of an episode and scores, and never sees the policy, the store or a key. One
that plays itself asks for replies, or for an address at the gateway; its tools are run for it outside of its sandbox,
in one of their own. Who starts the process, and what it may reach, is the caller's.
"""

import asyncio
import contextlib
import itertools
import os
import signal
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec

from environments import others
from environments.env import Environment, NoArgs, PolicySession
from environments.errors import words_of
from environments.isolated.asking import MAX_WORDS, Answers, Tool
from environments.isolated.frames import (
    LENGTH_BYTES,
    MAX_ANSWER_BYTES,
    MAX_FRAME_BYTES,
    MAX_UNASKED,
    Ask,
    Loaded,
    Method,
    RemoteAnswer,
    RemoteCall,
    RemoteFault,
    RemotePlay,
    Score,
    framed,
    raised,
)
from environments.isolated.stderr import Stderr
from environments.types import FinishedRollout, Message, Problem, Split

_LOAD_DEADLINE_S = 300.0
"""For what may read a data set: the start, counting, finding a problem."""
_GREETING_S = 60.0
"""For an interpreter to start."""
_LAST_WORDS_S = 1.0
"""For what a process wrote to stderr before it died to arrive."""
_UNREAD_BYTES = 64 * 2**20
"""Of what it was told and has not read, from which on our calls wait. Below that a group is told to begin in one go."""
_MOST_UNREAD_BYTES = 2 * MAX_FRAME_BYTES
"""Above which it is ended. Our calls alone never come so far."""
_DEATH_S = 10.0
"""For a process to be gone after SIGKILL: one in uninterruptible sleep may never be."""


class EnvironmentDied(Exception):
    """The process of the environment is gone; the message has its last words."""


_UNDECODABLE = (msgspec.MsgspecError, RecursionError)
"""What decoding raises; the second of what is nested without end."""
_answer = msgspec.msgpack.Decoder(RemoteAnswer).decode
_ask = msgspec.msgpack.Decoder(Ask).decode
_answers = {
    method: msgspec.msgpack.Decoder(kind)
    for method, kind in {
        "load": Loaded,
        "count": int,
        "problem": Problem,
        "start": int,
        "step": list[Message] | None,
        "play": RemotePlay,
        "score_group": list[Score],
        "ping": None,
    }.items()
}


async def refuse_tools(request: bytes) -> msgspec.Raw:
    """Of a process that may run none."""
    raise ValueError("nobody runs tools for this process")


class Isolated(Environment[Any]):
    """The environment `name`, whose code lives in a process. Belongs to one event loop."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, *, tool: Tool = refuse_tools) -> None:
        super().__init__(NoArgs())
        self.name = name  # type: ignore[misc]  # a class has one name, this stands for many
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._ids = itertools.count(1)
        self._waiting: dict[int, tuple[Method, asyncio.Future[Any]]] = {}
        self._to_nobody = 0
        """Answers in a row that nobody waited for."""
        self._plays_itself = False
        self._answers = Answers(tool, self._tell)
        self._turn = asyncio.Lock()
        """Of calls that wait until what was said before has been read."""
        self._stderr = Stderr()
        self._end_reason = ""
        self._is_ended = False
        assert process.stdin is not None
        assert process.stderr is not None
        self._stdin = process.stdin
        self._stdin.transport.set_write_buffer_limits(_UNREAD_BYTES)
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._stderr.listen(process.stderr))]

    @property
    def pid(self) -> int:
        """Of the process that was started."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it still answers."""
        return not (self._is_ended or self._tasks[0].done())

    @property
    def recent_stderr(self) -> str:
        """The end of what its code wrote to stderr and stdout."""
        return self._stderr.end("\n")

    async def load(self, args: dict[str, Any]) -> None:
        """Make the environment. Raises RegistryError, EnvironmentDied, TimeoutError."""
        # Loading may take long; a process that does not even begin to answer would be waited for as long.
        await self._call("ping", within_s=_GREETING_S)
        loaded: Loaded = await self._call("load", self.name, args, within_s=_LOAD_DEADLINE_S)
        self.version = loaded.version  # type: ignore[misc]
        self._plays_itself, self.seats = loaded.plays_itself, loaded.seats

    async def ask_count(self, split: Split, *, within_s: float = _LOAD_DEADLINE_S) -> int:
        """As `count`, on the event loop. Raises TimeoutError too."""
        count: int = await self._call("count", split, within_s=within_s)
        return count

    async def ask_problem(self, split: Split, index: int, *, within_s: float = _LOAD_DEADLINE_S) -> Problem:
        """As `problem`, on the event loop. Raises TimeoutError too."""
        problem: Problem = await self._call("problem", split, index, within_s=within_s)
        return problem

    async def answers(self, within_s: float) -> bool:
        """Whether its event loop runs: code that blocks, or holds the interpreter's lock, keeps it from answering."""
        try:
            await self._call("ping", within_s=within_s)
        except (TimeoutError, EnvironmentDied):
            return False
        except Exception:  # noqa: BLE001 - what it says instead is an answer too
            return True
        return True

    def count(self, split: Split) -> int:
        """As `Environment.count`; not on the event loop's thread."""
        return asyncio.run_coroutine_threadsafe(self.ask_count(split), self._loop).result()

    def problem(self, split: Split, index: int) -> Problem:
        """As `Environment.problem`; not on the event loop's thread."""
        return asyncio.run_coroutine_threadsafe(self.ask_problem(split, index), self._loop).result()

    @property
    def plays_itself(self) -> bool:
        return self._plays_itself

    async def play(self, problem: Problem, session: PolicySession) -> None:
        await self._play(problem, {"": session})

    async def play_match(self, problem: Problem, sessions: Mapping[str, PolicySession]) -> None:
        await self._play(problem, sessions)

    async def _play(self, problem: Problem, sessions: Mapping[str, PolicySession]) -> None:
        opened = {next(self._ids): session for session in sessions.values()}
        with ExitStack() as answered:
            for number, session in opened.items():
                answered.enter_context(self._answers.to_session(number, session))
            played: RemotePlay = await self._call("play", problem, dict(zip(sessions, opened, strict=True)))
            for number, notes in played.notes.items():
                opened[number].note(notes)
            if played.fault is not None:
                raise raised(played.fault)

    async def start(self, problem: Problem) -> Any:
        return _State(self, await self._call("start", problem))

    async def step(self, state: Any, reply: Message) -> list[Message] | None:
        added: list[Message] | None = await self._call("step", state.number, reply)
        return added

    async def score_group(self, problem: Problem, rollouts: Sequence[FinishedRollout]) -> Sequence[float | Exception]:
        scores: list[Score] = await self._call("score_group", problem, list(rollouts))
        if len(scores) != len(rollouts):
            raise ValueError(f"score_group gave {len(scores)} scores for {len(rollouts)} rollouts")
        for rollout, score in zip(rollouts, scores, strict=True):
            rollout.metrics.update(score.metrics)
        return [
            raised(score.fault) if score.fault else float("nan") if score.reward is None else score.reward
            for score in scores
        ]

    async def end(self, reason: str) -> None:
        """End the process. Whoever waits for it, or asks it from now on, is told the reason."""
        self._end_reason = reason
        await self._kill()

    async def aclose(self) -> None:
        """End the process, with everything in its sandbox."""
        await self._kill()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._answers.aclose()
        # There is no public way: pipes that something over there still holds would outlive the loop.
        self._process._transport.close()  # type: ignore[attr-defined]

    def release(self, number: int) -> None:
        """Forget an episode's state. Safe from any thread, also when the process is gone."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._send, RemoteCall(0, "release", [number]))

    async def _call(self, method: Method, *parameters: Any, within_s: float | None = None) -> Any:
        if not self.is_alive:
            raise EnvironmentDied(self._last_words())
        number = next(self._ids)
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._waiting[number] = (method, answer)
        try:
            # What it asks back is read for all groups at once: who answers this one is known here.
            with self._answers.to_call(number, others.current()):
                async with asyncio.timeout(within_s):
                    await self._send_in_turn(RemoteCall(number, method, list(parameters)))
                    return await answer
        except TimeoutError:
            raise TimeoutError(f"{method} of environment {self.name} did not answer within {within_s:g} s") from None
        finally:
            self._waiting.pop(number, None)
            if not answer.done() or answer.cancelled():
                self._send(RemoteCall(0, "cancel", [number]))

    async def _send_in_turn(self, call: RemoteCall) -> None:
        """Send a call of ours when little of what was said before is unread. Raises ValueError for one too large."""
        async with self._turn:
            with contextlib.suppress(ConnectionError):  # gone: whoever waits for an answer is told so
                await self._stdin.drain()
            self._send(call)

    def _send(self, call: RemoteCall) -> None:
        if self._stdin.is_closing():
            return
        body = msgspec.msgpack.encode(call)
        if len(body) > MAX_FRAME_BYTES:
            raise ValueError(
                f"{call.method} hands environment {self.name} {len(body):,} bytes, of {MAX_FRAME_BYTES:,} that it may: "
                "play smaller groups, or put less into the data of a problem"
            )
        self._stdin.write(framed(body))

    async def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            while True:
                length = int.from_bytes(await self._process.stdout.readexactly(LENGTH_BYTES), "big")
                if length > MAX_ANSWER_BYTES:
                    raise ValueError(f"it answered with {length:,} bytes, of {MAX_ANSWER_BYTES:,} that it may")
                self._settle(_answer(await self._process.stdout.readexactly(length)))
        except (asyncio.IncompleteReadError, ConnectionError, ValueError, *_UNDECODABLE) as error:
            # Gone, or it speaks another language: either way nothing it says counts any more.
            if not isinstance(error, asyncio.IncompleteReadError | ConnectionError):
                self._end_reason = self._end_reason or words_of(error)[:MAX_WORDS]
            await self._kill()
        finally:
            for _, answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(EnvironmentDied(self._last_words()))

    async def _kill(self) -> None:
        """End the process, and hear its last words."""
        self._is_ended = True
        self._signal()
        await asyncio.wait(self._tasks[1:], timeout=_LAST_WORDS_S)
        # `wait` waits for the pipes too, which something over there may still hold, or nobody reads any more.
        for descriptor in (1, 2):
            self._process._transport.get_pipe_transport(descriptor).close()  # type: ignore[attr-defined]
        if not self._stdin.is_closing():
            self._stdin.transport.abort()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DEATH_S):
                await self._process.wait()

    def _signal(self) -> None:
        if self._process.returncode is None:
            # Not Process.kill, which reaps one that has just ended by itself before asyncio learns its exit code.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)

    def _settle(self, answer: RemoteAnswer) -> None:
        if answer.id < 0:
            try:
                ask = _ask(answer.result)
            except _UNDECODABLE as error:
                # Of one episode's code, such as a message whose content is a number: the others go on.
                self._tell(-answer.id, None, RemoteFault("ValidationError", words_of(error)[:MAX_WORDS]))
            else:
                self._answers.begin(-answer.id, ask)
            return
        method, waiting = self._waiting.get(answer.id, (None, None))
        if waiting is None or waiting.done() or method is None:
            self._to_nobody += 1
            if self._to_nobody > MAX_UNASKED:
                raise ValueError(f"it sent {self._to_nobody} answers that nobody waits for")
            return
        self._to_nobody = 0
        try:
            if answer.fault is not None:
                waiting.set_exception(raised(answer.fault))
            else:
                waiting.set_result(_answers[method].decode(answer.result))
        except _UNDECODABLE as error:
            waiting.set_exception(raised(RemoteFault("ValidationError", f"{method}: {error}")))

    def _tell(self, number: int, given: Any, fault: RemoteFault | None) -> None:
        self._send(RemoteCall(0, "told", [number, given, fault]))
        if self._stdin.transport.get_write_buffer_size() > _MOST_UNREAD_BYTES:
            # It would pile up here.
            told = f"{_MOST_UNREAD_BYTES:,} bytes that it asked for wait for it: it asks, and does not read"
            self._end_reason = self._end_reason or told
            self._signal()

    def _last_words(self) -> str:
        words = self._end_reason or self._stderr.end(" | ")[-MAX_WORDS:]
        code = self._process.returncode
        return f"the process of environment {self.name} is gone (exit code {code})" + (f": {words}" if words else "")


class _State:
    """An episode's state over there; it is forgotten there when nobody here has it any more."""

    def __init__(self, environment: Isolated, number: int) -> None:
        self.number = number
        weakref.finalize(self, environment.release, number)
