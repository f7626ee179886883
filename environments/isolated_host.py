"""The process of one isolated environment: `python -m environments.isolated_host`; see `environments.isolated`.

Answers calls from stdin on stdout. The environment's own prints go to stderr.
"""

import asyncio
import itertools
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, BinaryIO

import msgspec

from environments import registry
from environments.env import Environment, SessionAddress
from environments.errors import RegistryError, SessionOver
from environments.isolated import (
    LENGTH_BYTES,
    MAX_FRAME_BYTES,
    Loaded,
    RemoteAsk,
    RemoteCall,
    RemoteFault,
    Score,
    framed,
    raised,
)
from environments.types import JsonObject, Message, PlayedRollout, Problem, Split

_FRAMES = -4
_MAX_MESSAGE = 2_000


class Host:
    """The environment and the states of its episodes."""

    def __init__(self, writer: BinaryIO) -> None:
        self._writer = writer
        self._environment: Environment[Any] | None = None
        self._states: dict[int, Any] = {}
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Message]] = {}

    async def answer(self, call: RemoteCall) -> None:
        """Make a call and send what comes of it."""
        result: Any = None
        fault = None
        try:
            result = await getattr(self, f"_{call.method}")(*call.parameters)
        except Exception as error:  # noqa: BLE001 - the boundary to the environment's code
            fault = _fault(error)
        if call.id:
            self._send(call.id, result, fault)

    async def ask(self, ask: RemoteAsk) -> Message:
        """Have the driver ask the policy. Raises what it raised."""
        number = next(self._numbers)
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            self._send(-number, ask, None)
            return await answer
        finally:
            del self._asked[number]

    def _send(self, number: int, result: Any, fault: RemoteFault | None) -> None:
        self._writer.write(framed(msgspec.msgpack.encode([number, result, fault])))
        self._writer.flush()

    @property
    def _made(self) -> Environment[Any]:
        if self._environment is None:
            raise RuntimeError("no environment was loaded")
        return self._environment

    async def _load(self, name: str, args: dict[str, Any]) -> Loaded:
        self._environment = await asyncio.to_thread(registry.load, name, args)
        return Loaded(str(self._environment.version), self._environment.plays_itself)

    async def _count(self, split: str) -> int:
        return int(await asyncio.to_thread(self._made.count, Split(split)))

    async def _problem(self, split: str, index: int) -> Problem:
        return await asyncio.to_thread(self._made.problem, Split(split), index)

    async def _start(self, problem: dict[str, Any]) -> int:
        number = next(self._numbers)
        self._states[number] = await self._made.start(msgspec.convert(problem, Problem))
        return number

    async def _step(self, number: int, reply: dict[str, Any]) -> list[Message] | None:
        return await self._made.step(self._states[number], msgspec.convert(reply, Message))

    async def _play(self, problem: dict[str, Any], number: int) -> None:
        played = msgspec.convert(problem, Problem)
        await self._made.play(played, RemoteSession(self, number, played))

    async def _replied(self, number: int, reply: dict[str, Any] | None, fault: dict[str, Any] | None) -> None:
        answer = self._asked.get(number)
        if answer is None or answer.done():
            return
        try:
            if fault is not None:
                answer.set_exception(raised(msgspec.convert(fault, RemoteFault)))
            else:
                answer.set_result(msgspec.convert(reply, Message))
        except msgspec.ValidationError as error:
            answer.set_exception(error)

    async def _score_group(self, problem: dict[str, Any], rollouts: list[dict[str, Any]]) -> list[Score]:
        played = [msgspec.convert(rollout, PlayedRollout) for rollout in rollouts]
        scores = await self._made.score_group(msgspec.convert(problem, Problem), played)
        return [
            Score(None, rollout.metrics, _fault(score))
            if isinstance(score, Exception)
            else Score(float(score), rollout.metrics)
            for rollout, score in zip(played, scores, strict=True)
        ]

    async def _release(self, number: int) -> None:
        self._states.pop(number, None)


class RemoteSession:
    """A session of the driver, as the environment sees it."""

    def __init__(self, host: Host, number: int, problem: Problem) -> None:
        self.problem = problem
        self._host = host
        self._number = number

    async def reply(
        self, messages: Sequence[Message] | None = None, tools: Sequence[JsonObject] | None = None
    ) -> Message:
        """As `PolicySession.reply`."""
        given = None if messages is None else list(messages)
        return await self._host.ask(RemoteAsk(self._number, given, None if tools is None else list(tools)))

    async def address(self) -> SessionAddress:
        """Nothing of the gateway reaches this process yet."""
        raise SessionOver("The process of an isolated environment reaches no gateway: use session.reply.")


def _fault(error: Exception) -> RemoteFault:
    origin = error.__cause__ or error
    frames = traceback.format_list(traceback.extract_tb(origin.__traceback__)[_FRAMES:])
    refuses = isinstance(error, RegistryError)
    return RemoteFault(type(error).__name__, str(error)[:_MAX_MESSAGE], "".join(frames), refuses)


async def _serve(reader: BinaryIO, host: Host) -> None:
    decode = msgspec.msgpack.Decoder(RemoteCall).decode
    tasks: set[asyncio.Task[None]] = set()
    while head := await asyncio.to_thread(reader.read, LENGTH_BYTES):
        length = int.from_bytes(head, "big")
        if length > MAX_FRAME_BYTES:
            raise ValueError(f"a call of {length} bytes")
        task = asyncio.create_task(host.answer(decode(await asyncio.to_thread(reader.read, length))))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


def main() -> None:
    """Serve until stdin ends."""
    # What the environment prints must not get between the answers.
    reader, writer = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    asyncio.run(_serve(reader, Host(writer)))
    sys.stdout.flush()
    os._exit(0)  # whatever threads the environment left


if __name__ == "__main__":
    main()
