"""What the driver makes of an environment's process that answers, but nothing that can be read."""

import asyncio
import os
import signal
import sys

import msgspec
import pytest

from environments.isolated import EnvironmentDied, Isolated, framed
from environments.isolated.frames import fault_of
from environments.types import Split

DEEP = b"\x91" * 200_000 + b"\xc0"
"""A list in a list in a list, as MessagePack."""
SAY = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read(int(sys.argv[1]))); sys.stdout.flush(); input()"


HELD = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True); input()"
"""Its child has all of its pipes."""
FLOOD = "import os; os.write(1, b'\\xff' * 4)\nwhile True: os.write(1, b'x' * 65536)"


async def started(code: str, *arguments: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, *arguments), stdin=pipe, stdout=pipe, stderr=pipe
    )


def test_an_answer_that_is_nested_without_end_ends_its_process() -> None:
    async def act() -> int | None:
        said = framed(b"\x92\x01" + DEEP)
        process = await started(SAY, str(len(said)))
        assert process.stdin is not None
        process.stdin.write(said)
        environment = Isolated("guest", process)
        try:
            with pytest.raises(EnvironmentDied, match="exit code -9"):
                await asyncio.to_thread(environment.count, Split.TRAIN)
            return process.returncode
        finally:
            await environment.aclose()

    assert asyncio.run(asyncio.wait_for(act(), 60)) == -9


def test_one_that_answers_a_ping_with_a_fault_answers() -> None:
    async def act() -> bool:
        said = framed(msgspec.msgpack.encode([1, None, fault_of(RuntimeError("no"))]))
        process = await started(SAY, str(len(said)))
        assert process.stdin is not None
        process.stdin.write(said)
        environment = Isolated("guest", process)
        try:
            return await environment.answers(within_s=30)
        finally:
            await environment.aclose()

    assert asyncio.run(asyncio.wait_for(act(), 60))


def test_one_whose_pipes_another_process_holds_is_ended_all_the_same() -> None:
    async def act() -> int | None:
        process = await started(HELD)
        assert process.stdout is not None
        holder = int(await process.stdout.readline())
        try:
            await Isolated("guest", process).aclose()
        finally:
            os.kill(holder, signal.SIGKILL)
        return process.returncode

    assert asyncio.run(asyncio.wait_for(act(), 60)) == -9


def test_what_one_goes_on_writing_keeps_nobody_from_its_end() -> None:
    async def act() -> int | None:
        process = await started(FLOOD)
        environment = Isolated("guest", process)
        with pytest.raises(EnvironmentDied, match="4,294,967,295 bytes"):
            await environment.ask_count(Split.TRAIN)
        await environment.aclose()
        return process.returncode

    assert asyncio.run(asyncio.wait_for(act(), 60)) == -9
