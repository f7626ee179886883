"""What the driver makes of an environment's process that answers, but nothing that can be read."""

import asyncio
import sys

import pytest

from environments.isolated import EnvironmentDied, Isolated, framed
from environments.types import Split

DEEP = b"\x91" * 200_000 + b"\xc0"
"""A list in a list in a list, as MessagePack."""
SAY = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read(int(sys.argv[1]))); sys.stdout.flush(); input()"


def test_an_answer_that_is_nested_without_end_ends_its_process() -> None:
    async def act() -> int | None:
        said, pipe = framed(b"\x92\x01" + DEEP), asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", SAY, str(len(said))), stdin=pipe, stdout=pipe, stderr=pipe
        )
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
