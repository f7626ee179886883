"""An environment in a process of its own, seen from the driver: what it answers is data, whatever its code does.

    driver: Isolated ──[id, method, parameters]──▶ socket ──▶ environments.isolated_host: the environment itself
                     ◀──[id, result, fault]──────
                     ◀──[-id, messages of a session]──           of one that plays its episodes itself

The process is asked for problems, answers of an episode and scores, and never sees the policy, the store or a key. One
that plays itself asks for replies, which the driver gets. Frames are MessagePack behind their length. An episode's
state stays there, under a number. Who starts the process, and what it may reach, is the caller's.
"""

import asyncio
import contextlib
import itertools
import os
import signal
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from environments import errors
from environments.env import Environment, NoArgs, PolicySession
from environments.errors import EpisodeError, RegistryError
from environments.types import JsonObject, Message, PlayedRollout, Problem, Split

MAX_FRAME_BYTES = 256 * 2**20
"""Of one message: a group of long rollouts is some tens of megabytes."""
LENGTH_BYTES = 4
_LOAD_DEADLINE_S = 300.0
"""For what may read a data set: the start, counting, finding a problem."""
_STDERR_LINES = 20
_LAST_WORDS_S = 1.0
"""For what a process wrote to stderr before it died to arrive."""
_MAX_WORDS = 500

MAX_ASK_BYTES = 16 * 2**20
"""Of one conversation."""
MAX_ASKED = 64
"""Replies that one session waits for at a time."""

Method = Literal["load", "count", "problem", "start", "step", "play", "replied", "score_group", "release"]


class RemoteFault(msgspec.Struct, frozen=True):
    """What the environment's code raised."""

    type: str
    message: str
    traceback: str = ""
    refuses: bool = False
    """Whether it is an environment that cannot be made."""


class RemoteAnswer(msgspec.Struct, frozen=True, array_like=True):
    """To one call. Of ``fault`` and ``result`` the first counts."""

    id: int
    result: msgspec.Raw
    fault: RemoteFault | None = None


class RemoteCall(msgspec.Struct, frozen=True, array_like=True):
    """One call; ``parameters`` are those of the method."""

    id: int
    method: Method
    parameters: list[Any]


class Loaded(msgspec.Struct, frozen=True):
    """What is known of an environment that was made."""

    version: str
    plays_itself: bool = False


class RemoteAsk(msgspec.Struct, frozen=True):
    """A session over there asks the policy: the result of an answer with a negative id."""

    session: int
    messages: list[Message] | None
    tools: list[JsonObject] | None


class Score(msgspec.Struct, frozen=True):
    """Of one rollout."""

    reward: float | None
    metrics: dict[str, float]
    fault: RemoteFault | None = None


class IsolatedFault(Exception):
    """What the environment's code raised over there. Its class has the name of the one it stands for."""

    remote_traceback = ""


class EnvironmentDied(Exception):
    """The process of the environment is gone; the message has its last words."""


_UNDECODABLE = (msgspec.MsgspecError, RecursionError)
"""What decoding raises; the second of what is nested without end."""
_answer = msgspec.msgpack.Decoder(RemoteAnswer).decode
_ask = msgspec.msgpack.Decoder(RemoteAsk).decode
_answers = {
    method: msgspec.msgpack.Decoder(kind)
    for method, kind in {
        "load": Loaded,
        "count": int,
        "problem": Problem,
        "start": int,
        "step": list[Message] | None,
        "play": None,
        "score_group": list[Score],
    }.items()
}


class Isolated(Environment[Any]):
    """The environment `name`, whose code lives in a process. Belongs to one event loop."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        super().__init__(NoArgs())
        self.name = name  # type: ignore[misc]  # a class has one name, this stands for many
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._ids = itertools.count(1)
        self._waiting: dict[int, tuple[Method, asyncio.Future[Any]]] = {}
        self._plays_itself = False
        self._sessions: dict[int, PolicySession] = {}
        self._asked: dict[int, set[asyncio.Task[None]]] = {}
        """Session -> its requests to the policy."""
        self._stderr: deque[bytes] = deque(maxlen=_STDERR_LINES)
        self._end_reason = ""
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._listen())]

    @property
    def is_alive(self) -> bool:
        """Whether it still answers."""
        return not self._tasks[0].done()

    async def load(self, args: dict[str, Any]) -> None:
        """Make the environment. Raises RegistryError, EnvironmentDied, TimeoutError."""
        async with asyncio.timeout(_LOAD_DEADLINE_S):
            loaded: Loaded = await self._call("load", self.name, args)
        self.version = loaded.version  # type: ignore[misc]
        self._plays_itself = loaded.plays_itself

    def count(self, split: Split) -> int:
        """As `Environment.count`; not on the event loop's thread."""
        count: int = self._blocking("count", split)
        return count

    def problem(self, split: Split, index: int) -> Problem:
        """As `Environment.problem`; not on the event loop's thread."""
        problem: Problem = self._blocking("problem", split, index)
        return problem

    @property
    def plays_itself(self) -> bool:
        return self._plays_itself

    async def play(self, problem: Problem, session: PolicySession) -> None:
        number = next(self._ids)
        self._sessions[number], self._asked[number] = session, set()
        try:
            await self._call("play", problem, number)
        finally:
            del self._sessions[number]
            for task in self._asked.pop(number):
                task.cancel()

    async def start(self, problem: Problem) -> Any:
        return _State(self, await self._call("start", problem))

    async def step(self, state: Any, reply: Message) -> list[Message] | None:
        added: list[Message] | None = await self._call("step", state.number, reply)
        return added

    async def score_group(self, problem: Problem, rollouts: Sequence[PlayedRollout]) -> Sequence[float | Exception]:
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

    def release(self, number: int) -> None:
        """Forget an episode's state. Safe from any thread, also when the process is gone."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._send, RemoteCall(0, "release", [number]))

    def _blocking(self, method: Method, *parameters: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(self._call(method, *parameters), self._loop).result(_LOAD_DEADLINE_S)

    async def _call(self, method: Method, *parameters: Any) -> Any:
        if not self.is_alive:
            raise EnvironmentDied(self._last_words())
        number = next(self._ids)
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._waiting[number] = (method, answer)
        try:
            self._send(RemoteCall(number, method, list(parameters)))
            return await answer
        finally:
            self._waiting.pop(number, None)

    def _send(self, call: RemoteCall) -> None:
        writer = self._process.stdin
        if writer is not None and not writer.is_closing():
            writer.write(framed(msgspec.msgpack.encode(call)))
            piled_up = writer.transport.get_write_buffer_size() > MAX_FRAME_BYTES
            if piled_up and self._process.returncode is None:
                # It asks and does not read: what it is told would pile up here.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._process.pid, signal.SIGKILL)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            while True:
                length = int.from_bytes(await self._process.stdout.readexactly(LENGTH_BYTES), "big")
                if length > MAX_FRAME_BYTES:
                    raise ValueError(f"an answer of {length} bytes")
                self._settle(_answer(await self._process.stdout.readexactly(length)))
        except (asyncio.IncompleteReadError, ConnectionError, ValueError, *_UNDECODABLE):
            # Gone, or it speaks another language: either way nothing it says counts any more.
            await self._kill()
            await asyncio.wait(self._tasks[1:], timeout=_LAST_WORDS_S)
        finally:
            for _, answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(EnvironmentDied(self._last_words()))

    async def _kill(self) -> None:
        if self._process.returncode is None:
            # Not Process.kill, which reaps one that has just ended by itself before asyncio learns its exit code.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    def _begin_reply(self, number: int, raw: msgspec.Raw) -> None:
        """Get a session over there its reply. Raises ValueError, MsgspecError."""
        if len(raw) > MAX_ASK_BYTES:
            raise ValueError(f"a question of {len(raw)} bytes")
        ask = _ask(raw)
        asked = self._asked.get(ask.session)
        if asked is None or len(asked) >= MAX_ASKED:
            why = "is over" if asked is None else f"waits for {MAX_ASKED} replies already"
            self._send(RemoteCall(0, "replied", [number, None, RemoteFault("SessionOver", f"This session {why}.")]))
            return
        task = asyncio.create_task(self._reply(number, ask))
        asked.add(task)
        task.add_done_callback(asked.discard)

    async def _reply(self, number: int, ask: RemoteAsk) -> None:
        reply, fault = None, None
        try:
            reply = await self._sessions[ask.session].reply(ask.messages, ask.tools)
        except Exception as error:  # noqa: BLE001 - whatever it was, somebody over there waits for it
            fault = RemoteFault(type(error).__name__, str(error)[:_MAX_WORDS])
        self._send(RemoteCall(0, "replied", [number, reply, fault]))

    def _settle(self, answer: RemoteAnswer) -> None:
        if answer.id < 0:
            self._begin_reply(-answer.id, answer.result)
            return
        method, waiting = self._waiting.get(answer.id, (None, None))
        if waiting is None or waiting.done() or method is None:
            return
        if answer.fault is not None:
            waiting.set_exception(raised(answer.fault))
            return
        try:
            waiting.set_result(_answers[method].decode(answer.result))
        except _UNDECODABLE as error:
            waiting.set_exception(raised(RemoteFault("ValidationError", f"{method}: {error}")))

    async def _listen(self) -> None:
        """Keep the end of what it writes to stderr, however much that is."""
        assert self._process.stderr is not None
        while chunk := await self._process.stderr.read(65_536):
            self._stderr.extend(chunk.splitlines()[-_STDERR_LINES:])

    def _last_words(self) -> str:
        words = self._end_reason or b" | ".join(self._stderr).decode(errors="replace")[-_MAX_WORDS:]
        code = self._process.returncode
        return f"the process of environment {self.name} is gone (exit code {code})" + (f": {words}" if words else "")


class _State:
    """An episode's state over there; it is forgotten there when nobody here has it any more."""

    def __init__(self, environment: Isolated, number: int) -> None:
        self.number = number
        weakref.finalize(self, environment.release, number)


def framed(body: bytes) -> bytes:
    """A message as it goes over the socket."""
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def raised(fault: RemoteFault) -> Exception:
    """An error that stands for one over there: of the runner's own classes themselves, else of a class of that name."""
    if fault.refuses:
        return RegistryError(fault.message)
    known = getattr(errors, fault.type, None)
    if isinstance(known, type) and issubclass(known, EpisodeError):
        return known(fault.message)
    name = fault.type if fault.type.isidentifier() else "Exception"
    error: Exception = type(name[:100], (IsolatedFault,), {"remote_traceback": fault.traceback})(fault.message)
    return error
