"""The process of one isolated environment: `python -m environments.isolated.host`; see `environments.isolated.process`.

Answers calls from stdin on stdout. The environment's own prints go to stderr. Imports the standard library and msgspec
only, for it runs in virtual environments of others too.
"""

import asyncio
import contextvars
import itertools
import os
import sys
import traceback
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, TypeVar

import msgspec

from environments import others, registry
from environments.env import Environment, SessionAddress
from environments.errors import finite
from environments.isolated.forwarding import Forwarding
from environments.isolated.frames import (
    LENGTH_BYTES,
    MAX_ANSWER_BYTES,
    MAX_ASKED,
    MAX_FRAME_BYTES,
    MAX_TOOLS,
    Ask,
    AskAddress,
    AskOther,
    AskReply,
    AskTool,
    Loaded,
    RemoteCall,
    RemoteFault,
    RemotePlay,
    Score,
    Withdraw,
    fault_of,
    framed,
    raised,
)
from environments.sandbox import tools
from environments.sandbox.remote import RemoteEngine
from environments.types import ChatAnswer, FinishedRollout, JsonObject, Message, Problem, Split

T = TypeVar("T")


class Host:
    """The environment and the states of its episodes. Made on the event loop that calls are answered on."""

    def __init__(self, writer: BinaryIO) -> None:
        self._loop = asyncio.get_running_loop()
        self._writer = writer
        self._environment: Environment[Any] | None = None
        self._states: dict[int, Any] = {}
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._programs = asyncio.Semaphore(MAX_TOOLS)
        """Turns: what the driver would refuse waits here."""
        self._forwarding = Forwarding()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._finding = ThreadPoolExecutor(thread_name_prefix="problems")
        """Threads of their own: in one an environment may wait for its loop, which may wait for one of `to_thread`."""

    def begin(self, call: RemoteCall) -> None:
        """Answer a call as soon as may be."""
        task = asyncio.create_task(self.answer(call))
        number = call.id or -next(self._numbers)
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._tasks.pop(number, None))

    async def answer(self, call: RemoteCall) -> None:
        """Make a call and send what comes of it."""
        result: Any = None
        fault = None
        try:
            with others.using(RemoteOthers(self, call.id)):
                result = await getattr(self, f"_{call.method}")(*call.parameters)
        except Exception as error:  # noqa: BLE001 - the boundary to the environment's code
            fault = fault_of(error)
        if not call.id:
            return
        try:
            self._send(call.id, result, fault)
        except Exception as error:  # noqa: BLE001 - what it gave cannot be written down
            self._send(call.id, None, fault_of(error))

    async def ask(self, ask: Ask, turn: asyncio.Semaphore | None = None) -> Any:
        """Have the driver do something, in its turn, and return what it gave. From any event loop. Raises what it
        raised."""
        return await self._here(self._ask(ask) if turn is None else self._ask_in(turn, ask))

    async def _ask_in(self, turn: asyncio.Semaphore, ask: Ask) -> Any:
        async with turn:
            return await self._ask(ask)

    async def _ask(self, ask: Ask) -> Any:
        number = next(self._numbers)
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._asked[number] = answer
        try:
            self._send(-number, ask, None)
            return await answer
        except asyncio.CancelledError:
            self._send(-number, Withdraw(), None)
            raise
        finally:
            del self._asked[number]

    async def tool(self, request: bytes) -> Any:
        """Have the driver run a program in a sandbox beside this one."""
        return await self.ask(AskTool(msgspec.Raw(request)), self._programs)

    async def address(self, session: int) -> SessionAddress:
        """Where programs in here play a session: a port of our own loopback, behind which the gateway is."""
        return await self._here(self._address(session))

    async def _address(self, session: int) -> SessionAddress:
        key = str(await self.ask(AskAddress(session)))
        return SessionAddress(f"{await self._forwarding.url()}/s/{key}/v1", key)

    async def _here(self, doing: Coroutine[Any, Any, T]) -> T:
        """Await it on our loop: another, of a thread of the environment's, is woken by nothing that happens here."""
        if asyncio.get_running_loop() is self._loop:
            return await doing
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(doing, self._loop))

    def _send(self, number: int, result: Any, fault: RemoteFault | None) -> None:
        body = msgspec.msgpack.encode([number, result, fault], enc_hook=_plain)
        if len(body) > MAX_ANSWER_BYTES:  # for which we would be ended
            raise ValueError(
                f"{len(body):,} bytes at once, of {MAX_ANSWER_BYTES:,} that a problem or a program may have"
            )
        self._writer.write(framed(body))
        self._writer.flush()

    @property
    def _made(self) -> Environment[Any]:
        if self._environment is None:
            raise RuntimeError("no environment was loaded")
        return self._environment

    async def _load(self, name: str, args: dict[str, Any]) -> Loaded:
        self._environment = await asyncio.to_thread(registry.load, name, args)
        await self._environment.open()
        made = self._environment
        return Loaded(str(made.version), made.plays_itself, tuple(made.seats))

    async def _ping(self) -> None:
        """Answered as soon as the loop runs."""

    async def _count(self, split: str) -> int:
        return int(await self._found(self._made.count, Split(split)))

    async def _problem(self, split: str, index: int) -> Problem:
        return await self._found(self._made.problem, Split(split), index)

    async def _found(self, find: Callable[..., T], *args: Any) -> T:
        return await self._loop.run_in_executor(self._finding, contextvars.copy_context().run, find, *args)

    async def _start(self, problem: dict[str, Any]) -> int:
        number = next(self._numbers)
        self._states[number] = await self._made.start(msgspec.convert(problem, Problem))
        return number

    async def _step(self, number: int, reply: dict[str, Any]) -> list[Message] | None:
        return await self._made.step(self._states[number], msgspec.convert(reply, Message))

    async def _play(self, problem: dict[str, Any], numbers: dict[str, int]) -> RemotePlay:
        """Play with a session for each seat, or the one that has no seat."""
        posed, fault = msgspec.convert(problem, Problem), None
        sessions = {seat: RemoteSession(self, number, posed) for seat, number in numbers.items()}
        try:
            if "" in sessions:
                await self._made.play(posed, sessions[""])
            else:
                await self._made.play_match(posed, sessions)
        except Exception as error:  # noqa: BLE001 - the boundary to the environment's code; what it noted counts
            fault = fault_of(error)
        return RemotePlay({session.number: session.notes for session in sessions.values() if session.notes}, fault)

    async def _told(self, number: int, given: Any, fault: dict[str, Any] | None) -> None:
        answer = self._asked.get(number)
        if answer is None or answer.done():
            return
        if fault is not None:
            answer.set_exception(raised(msgspec.convert(fault, RemoteFault)))
        else:
            answer.set_result(given)

    async def _score_group(self, problem: dict[str, Any], rollouts: list[dict[str, Any]]) -> list[Score]:
        played = [msgspec.convert(rollout, FinishedRollout) for rollout in rollouts]
        scores = await self._made.score_group(msgspec.convert(problem, Problem), played)
        return [_scored(rollout, score) for rollout, score in zip(played, scores, strict=True)]

    async def _cancel(self, number: int) -> None:
        """Nobody waits for that call any more."""
        if (task := self._tasks.get(number)) is not None:
            task.cancel()

    async def _release(self, number: int) -> None:
        self._states.pop(number, None)


class RemoteSession:
    """A session of the driver, as the environment sees it."""

    def __init__(self, host: Host, number: int, problem: Problem) -> None:
        self.problem = problem
        self.notes: JsonObject = {}
        self.number = number
        self._host = host

    async def reply(
        self, messages: Sequence[Message] | None = None, tools: Sequence[JsonObject] | None = None
    ) -> Message:
        """As `PolicySession.reply`."""
        given = None if messages is None else list(messages)
        ask = AskReply(self.number, given, None if tools is None else list(tools))
        return msgspec.convert(await self._host.ask(ask), Message)

    async def address(self) -> SessionAddress:
        """As `PolicySession.address`."""
        return await self._host.address(self.number)

    def note(self, notes: JsonObject) -> None:
        """As `PolicySession.note`."""
        self.notes = notes


class RemoteOthers:
    """The models beside the policy, as the code behind one call asks them: by way of the driver."""

    def __init__(self, host: Host, call: int) -> None:
        self._host = host
        self._call = call
        # A group that is compared asks hundreds of times at once: what the driver would refuse waits here.
        self._turn = asyncio.Semaphore(MAX_ASKED)

    async def reply(
        self,
        name: str,
        messages: Sequence[Message],
        tools: Sequence[JsonObject] = (),
        *,
        max_tokens: int = 256,
        temperature: float = 0.0,
        seed: int | None = None,
    ) -> ChatAnswer:
        """As `others.reply`."""
        ask = AskOther(self._call, name, list(messages), list(tools), max_tokens, temperature, seed)
        return msgspec.convert(await self._host.ask(ask, self._turn), ChatAnswer)


def _plain(value: Any) -> Any:
    """A number of numpy's, as Python has it."""
    if not callable(item := getattr(value, "item", None)):
        raise NotImplementedError
    return item()


def _scored(rollout: FinishedRollout, score: Any) -> Score:
    """What cannot be written down of one rollout is its fault alone."""
    try:
        if isinstance(score, Exception):
            raise score
        metrics = {str(key): finite(value, f"Metric {key!r}") for key, value in rollout.metrics.items()}
        return Score(finite(score, "The reward"), metrics)
    except Exception as error:  # noqa: BLE001 - the boundary to the environment's code
        return Score(None, {}, fault_of(error))


async def _serve(reader: BinaryIO, writer: BinaryIO) -> None:
    host = Host(writer)
    # A sandbox inside of this one would need what no run may have.
    tools.use(RemoteEngine(host.tool))
    decode = msgspec.msgpack.Decoder(RemoteCall).decode
    # A thread of its own: all others may wait for the environment's code.
    reading, loop = ThreadPoolExecutor(1, thread_name_prefix="calls"), asyncio.get_running_loop()
    while head := await loop.run_in_executor(reading, reader.read, LENGTH_BYTES):
        length = int.from_bytes(head, "big")
        if length > MAX_FRAME_BYTES:
            raise ValueError(f"a call of {length} bytes")
        host.begin(decode(await loop.run_in_executor(reading, reader.read, length)))


def main() -> None:
    """Serve until stdin ends."""
    # What the environment prints must not get between the answers.
    reader, writer = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    exit_code = 1
    try:
        asyncio.run(_serve(reader, writer))
        exit_code = 0
    except BaseException:  # noqa: BLE001 - whatever it was, this process ends of it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)  # whatever threads are left: the environment's, or ours that reads


if __name__ == "__main__":
    main()
