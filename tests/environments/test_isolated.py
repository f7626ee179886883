"""What is said between a driver and an environment's process: numbers of any make, and what cannot be read at all."""

import asyncio
import io
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest

from environments.env import Environment, NoArgs, PolicySession
from environments.gateway.app import make_app
from environments.gateway.serving import serving
from environments.gateway.sessions import OpenSessions
from environments.isolated import EnvironmentDied, Isolated, framed
from environments.isolated.asking import Answers
from environments.isolated.forwarding import Forwarding
from environments.isolated.frames import (
    GATEWAY_SOCKET,
    LENGTH_BYTES,
    MAX_TOOLS,
    AskTool,
    RemoteAnswer,
    RemoteCall,
    RemotePlay,
    Score,
    Withdraw,
    fault_of,
)
from environments.isolated.host import Host
from environments.types import FinishedRollout, Problem, Split

PROBLEM = Problem(key="p", messages=[])
PLAYED = FinishedRollout(token_ids=[], loss_mask=[], inference_logprobs=[])

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


class ByNumpy(Environment[NoArgs]):
    """Its scores are those of its problem's data, by name."""

    name = "by_numpy"
    scores: dict[str, list[Any]] = {
        "numpy's": [np.float64(0.5), np.float32(0.25), np.int64(1), True],
        "one none": [0.5, None, 0.25, 1.0],
    }

    def count(self, split: Split) -> int:
        return 1

    def problem(self, split: Split, index: int) -> Problem:
        return PROBLEM

    async def play(self, problem: Problem, session: PolicySession) -> None:
        session.note({"share": np.float64(0.5), "times": [np.int64(3)]})

    async def score_group(self, problem: Problem, rollouts: Sequence[FinishedRollout]) -> list[Any]:
        for rollout in rollouts:
            rollout.metrics["share"] = np.float64(0.5)
        rollouts[-1].metrics["words"] = problem.data.get("words", 3)
        return self.scores[problem.data["scores"]]


def answered(*calls: RemoteCall) -> RemoteAnswer:
    """The last answer of a process to calls, after it has loaded the environment `ByNumpy`."""

    async def act() -> bytes:
        writer = io.BytesIO()
        host = Host(writer)
        for call in (RemoteCall(1, "load", [f"{__name__}:ByNumpy", {}]), *calls):
            writer.seek(0)
            writer.truncate()
            await host.answer(call)
        return writer.getvalue()[LENGTH_BYTES:]

    return msgspec.msgpack.decode(asyncio.run(asyncio.wait_for(act(), 60)), type=RemoteAnswer)


def scored(**data: Any) -> list[Score]:
    problem = msgspec.to_builtins(msgspec.structs.replace(PROBLEM, data=data))
    answer = answered(RemoteCall(2, "score_group", [problem, [msgspec.to_builtins(PLAYED)] * 4]))
    assert answer.fault is None, answer.fault
    return msgspec.msgpack.decode(answer.result, type=list[Score])


def test_numbers_of_numpys_are_scores_metrics_and_notes_as_any_others_are() -> None:
    scores = scored(scores="numpy's")
    assert [score.reward for score in scores] == [0.5, 0.25, 1.0, 1.0]
    assert [score.metrics for score in scores] == [{"share": 0.5}] * 3 + [{"share": 0.5, "words": 3.0}]
    answer = answered(RemoteCall(2, "play", [msgspec.to_builtins(PROBLEM), {"": 7}]))
    played = msgspec.msgpack.decode(answer.result, type=RemotePlay)
    assert played.notes == {7: {"share": 0.5, "times": [3]}}


def test_a_score_or_metric_that_is_no_number_is_the_fault_of_its_rollout_alone() -> None:
    scores = scored(scores="one none", words="three")
    assert [score.reward for score in scores] == [0.5, None, 0.25, None]
    faults = [score.fault and (score.fault.type, score.fault.message) for score in scores]
    assert faults == [
        None,
        ("RewardError", "The reward is None, not a finite number."),
        None,
        ("RewardError", "Metric 'words' is 'three', not a finite number."),
    ]


def test_what_is_too_long_to_hand_over_fails_its_call_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("environments.isolated.host.MAX_ANSWER_BYTES", 10_000)
    monkeypatch.setitem(PROBLEM.data, "tests", "x" * 20_000)
    fault = answered(RemoteCall(2, "problem", ["train", 0])).fault
    assert fault is not None
    assert "of 10,000 that a problem or a program may have" in fault.message


ASKING = """
import sys, msgspec
for number in range(1, 9):
    body = msgspec.msgpack.encode([-number, {"type": "tool", "request": None}, None])
    sys.stdout.buffer.write(len(body).to_bytes(4, "big") + body)
sys.stdout.flush()
while True:
    pass
"""


def test_one_that_asks_and_does_not_read_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("environments.isolated.process._MOST_UNREAD_BYTES", 2**20)

    async def give(request: bytes) -> msgspec.Raw:
        return msgspec.Raw(msgspec.msgpack.encode(bytes(2**19)))

    async def act() -> None:
        environment = Isolated("guest", await started(ASKING), tool=give)
        try:
            with pytest.raises(EnvironmentDied, match="it asks, and does not read"):
                await environment.ask_count(Split.TRAIN)
        finally:
            await environment.aclose()

    asyncio.run(asyncio.wait_for(act(), 60))


def test_a_program_that_was_withdrawn_makes_room_for_another_while_it_ends() -> None:
    async def act() -> None:
        may_end = asyncio.Event()
        running: list[bytes] = []
        told: list[int] = []

        async def run(request: bytes) -> msgspec.Raw:
            running.append(request)
            try:
                return await asyncio.Future()
            finally:
                await may_end.wait()

        answers = Answers(run, lambda number, given, fault: told.append(number))
        try:
            for number in range(1, MAX_TOOLS + 2):
                answers.begin(number, AskTool(msgspec.Raw(b"")))
            assert told == [MAX_TOOLS + 1], "it asks for more than it may"
            await asyncio.sleep(0)  # they begin
            answers.begin(1, Withdraw())
            answers.begin(MAX_TOOLS + 2, AskTool(msgspec.Raw(b"")))
            await asyncio.sleep(0)
            assert (len(running), told) == (MAX_TOOLS + 1, [MAX_TOOLS + 1])
        finally:
            may_end.set()
            await answers.aclose()

    asyncio.run(asyncio.wait_for(act(), 60))


def test_a_gateway_whose_path_is_longer_than_an_address_may_be_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / ("d" * 150) / "gateway.sock"
    path.parent.mkdir()
    monkeypatch.setenv(GATEWAY_SOCKET, str(path))

    async def act() -> int:
        async with serving(make_app(OpenSessions()), path), httpx.AsyncClient() as client:
            return (await client.get(f"{await Forwarding().url()}/s/nobody/v1/models")).status_code

    assert 400 <= asyncio.run(asyncio.wait_for(act(), 60)) < 500


def test_a_gateway_that_cannot_be_reached_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(GATEWAY_SOCKET, str(tmp_path / "gateway.sock"))

    async def act() -> None:
        url = await Forwarding().url()
        async with httpx.AsyncClient() as client:
            with pytest.raises(httpx.RemoteProtocolError):
                await client.get(url)

    asyncio.run(asyncio.wait_for(act(), 60))
    assert f"the gateway at {tmp_path / 'gateway.sock'} cannot be reached: " in caplog.text
