"""Programs that a process has its driver run: what goes over, what is cut, what is refused."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from environments.errors import RewardError
from environments.rewards.judged_code.judge import InputAndOutput, passed
from environments.sandbox.call import SandboxCall
from environments.sandbox.engine import Engine
from environments.sandbox.remote import MOST, RemoteEngine, SandboxService
from environments.sandbox.tools import SandboxLimits, SandboxResult, SandboxUnavailable, default, run, use
from tests.environments.sandbox.programs import needs_sandbox


class Recording:
    """An engine that keeps what it is asked, and how many calls it had at a time."""

    def __init__(self) -> None:
        self.calls: list[SandboxCall] = []
        self.running = self.most_running = 0

    async def run(self, call: SandboxCall) -> SandboxResult:
        self.calls.append(call)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        return SandboxResult(ended="exit", exit_code=0, stdout=b"ran")


def asking(service: SandboxService) -> RemoteEngine:
    async def send(request: bytes) -> Any:
        return msgspec.msgpack.decode(await service.serve(request))

    return RemoteEngine(send)


async def through(engine: Engine, call: SandboxCall, **service: Any) -> SandboxResult:
    return await asking(SandboxService(engine, **service)).run(call)


@needs_sandbox
def test_a_program_comes_back_from_the_driver_as_if_it_ran_here() -> None:
    async def all_of_it() -> SandboxResult:
        use(asking(SandboxService(default())))
        try:
            return await run(
                ["sh", "-c", "cat given > kept; cat"], {"given": b"\0\xff"}, stdin="in", returns=["kept", "no"]
            )
        finally:
            use(None)

    done = asyncio.run(all_of_it())
    assert (done.succeeded, done.stdout, done.files) == (True, b"in", {"kept": b"\0\xff"})
    assert list(done.missing) == ["no"]


def test_limits_are_cut_to_those_of_the_driver() -> None:
    engine = Recording()
    asked = SandboxCall(argv=["x"], limits=SandboxLimits(wall_s=1e6, memory_bytes=2**50, processes=3))
    asyncio.run(through(engine, asked, most=SandboxLimits(wall_s=5)))
    limits = engine.calls[0].limits
    assert (limits.wall_s, limits.memory_bytes, limits.processes) == (5, SandboxLimits().memory_bytes, 3)


def test_only_so_many_run_at_once_for_one_process() -> None:
    engine = Recording()

    async def many() -> None:
        remote = asking(SandboxService(engine, at_once=2))
        await asyncio.gather(*(remote.run(SandboxCall(argv=["x"])) for _ in range(10)))

    asyncio.run(many())
    assert (len(engine.calls), engine.most_running) == (10, 2)


@pytest.mark.parametrize(
    "request_",
    [
        b"",
        b"\xc1",
        b"\x91" * 10_000,
        msgspec.msgpack.encode({"argv": ["x"], "engine": "unconfined"}),
        msgspec.msgpack.encode({"argv": "x"}),
        msgspec.msgpack.encode({"argv": ["x"], "files": {"../x": b""}}),
        msgspec.msgpack.encode({"argv": ["x"], "limits": {"wall_s": float("nan")}}),
        msgspec.msgpack.encode({"argv": ["x"], "files": {"x": bytes(2000)}, "limits": {"disk_bytes": 10}}),
    ],
)
def test_requests_that_make_no_sense_are_refused_and_start_nothing(request_: bytes) -> None:
    engine = Recording()
    answer = msgspec.msgpack.decode(asyncio.run(SandboxService(engine).serve(request_)))
    assert answer["result"] is None
    assert answer["refusal"]
    assert engine.calls == []


def test_a_driver_without_a_sandbox_says_so_over_there() -> None:
    class Missing:
        async def run(self, call: SandboxCall) -> SandboxResult:
            raise SandboxUnavailable("install bubblewrap")

    with pytest.raises(SandboxUnavailable, match="install bubblewrap"):
        asyncio.run(through(Missing(), SandboxCall(argv=["x"])))


def judged(code: str, outputs: Sequence[str], **service: Any) -> list[bool | None]:
    """Which outputs a program has, judged by way of the driver."""

    async def act() -> list[bool | None]:
        use(asking(SandboxService(default(), **service)))
        try:
            tests = [InputAndOutput(str(number), output) for number, output in enumerate(outputs)]
            return await passed(code, tests, test_s=10, wall_s=60)
        finally:
            use(None)

    return asyncio.run(act())


@needs_sandbox
def test_two_megabytes_of_right_output_are_right() -> None:
    assert judged("print(input() * 170_000)", [str(number) * 170_000 for number in range(12)]) == [True] * 12


@needs_sandbox
def test_right_output_that_is_more_than_the_driver_keeps_is_no_wrong_output() -> None:
    most = msgspec.structs.replace(MOST, kept_bytes=20_000, output_bytes=20_000)
    with pytest.raises(RewardError, match="give the problem fewer tests"):
        judged("print(input() * 9_000)", [str(number) * 9_000 for number in range(3)], most=most)


@needs_sandbox
def test_output_that_only_the_policy_made_too_long_is_wrong() -> None:
    most = msgspec.structs.replace(MOST, kept_bytes=20_000, output_bytes=20_000)
    assert judged("print(input() * 9_000)", ["0", "1", "2"], most=most) == [False, False, None]
