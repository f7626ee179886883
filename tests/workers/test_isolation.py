"""Environments from elsewhere, played by a real driver: their code is in a process that reaches nothing of ours."""

import asyncio
import contextlib
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from environments import registry
from environments.errors import RegistryError
from environments.isolated import EnvironmentDied, Isolated
from environments.sandbox import tools
from environments.sandbox.program import SandboxUnavailable
from environments.types import Message, PlayedRollout, Problem, Split
from rollouts.models import Run
from tests.workers.making import make_run
from tests.workers.waiting import eventually
from trainers.run_config import EnvironmentRef
from workers import isolation
from workers.launchers import confinement

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(
        bool(confinement.complaint()),
        reason=f"NO SANDBOX, isolated environments are not tried: {confinement.complaint()}",
    ),
]

CODE = """
import msgspec, os, socket, sys, time
from environments.env import Environment
from environments.errors import ToolError
from environments.types import Message, Problem, Split

class Args(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    secret: str = ""

class Guest(Environment[Args]):
    name = "guest"
    version = "7"
    args_type = Args

    def count(self, split):
        return 3

    def problem(self, split, index):
        print("a line that is no answer")
        return Problem(key=f"{split}-{index}", messages=[Message("user", "hi")], data={"n": index})

    async def start(self, problem):
        return {"turns": 0, "n": problem.data["n"]}

    async def step(self, state, reply):
        state["turns"] += 1
        if reply.content == "crash":
            print("last words", file=sys.stderr, flush=True)
            os._exit(9)
        if reply.content == "grow":
            os.fork()
            self.held = bytearray(300 * 2**20)
            time.sleep(60)
        if reply.content == "tool":
            raise ToolError("the tool broke")
        if reply.content == "bug":
            return {}["nothing"]
        if reply.content == "look":
            def reads(path):
                try:
                    return open(path).read(5) is not None
                except OSError:
                    return False
            return [Message("tool", repr({
                "secret": reads(self.args.secret),
                "variables": [name for name in os.environ if "DATABASE" in name or "SECRET" in name],
                "interfaces": [name for _, name in socket.if_nameindex()],
            }))]
        return [Message("user", f"turn {state['turns']} of {state['n']}")] if state["turns"] < 2 else None

    def reward(self, problem, rollout):
        rollout.metrics["length"] = float(len(rollout.messages))
        if not rollout.messages:
            raise ValueError("nothing was said")
        return 0.5
"""


@pytest.fixture
def guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[Run]:
    """A run whose environment comes from another package, as pip would have installed it."""
    settings.ROLLYARD_RUNS_DIR = tmp_path / "runs"
    package = tmp_path / "packages"
    (package / "guest-1.0.dist-info").mkdir(parents=True)
    (package / "guest_environment.py").write_text(textwrap.dedent(CODE))
    (package / "guest-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: guest\nVersion: 1.0\n")
    (package / "guest-1.0.dist-info" / "entry_points.txt").write_text(
        "[rollyard.environments]\nguest = guest_environment:Guest\n"
    )
    for path in (package, *package.rglob("*")):  # as pip leaves it: no secret
        path.chmod(0o755 if path.is_dir() else 0o644)
    monkeypatch.syspath_prepend(str(package))
    registry.places.cache_clear()
    yield make_run()
    registry.places.cache_clear()


def played(run: Run, act: Any, **args: Any) -> Any:
    """What `act` makes of the environment, on an event loop as a driver has one."""

    async def main() -> Any:
        environment = await isolation.load(run, EnvironmentRef(name="guest", args=args))
        assert isinstance(environment, Isolated)
        try:
            return await act(environment)
        finally:
            await isolation.close(environment)

    return asyncio.run(asyncio.wait_for(main(), 60))


def rollout(*said: str) -> PlayedRollout:
    messages = [Message("assistant", text) for text in said]
    return PlayedRollout(token_ids=[1], loss_mask=[1], inference_logprobs=[0.0], messages=messages)


def test_programs_of_an_environment_run_in_the_sandbox_that_was_chosen(
    guest: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(tools.VARIABLE, "nothing")
    tools.use(None)
    with pytest.raises(SandboxUnavailable, match="there is no sandbox 'nothing'"):
        asyncio.run(isolation.load(guest, EnvironmentRef(name="guest")))


def test_problems_turns_and_scores_come_through(guest: Run) -> None:
    async def act(environment: Isolated) -> None:
        assert environment.version == "7"
        assert await asyncio.to_thread(environment.count, Split.TRAIN) == 3
        problem = await asyncio.to_thread(environment.problem, Split.TRAIN, 2)
        assert problem == Problem(key="train-2", messages=[Message("user", "hi")], data={"n": 2})
        first, second = await environment.start(problem), await environment.start(problem)
        assert await environment.step(first, Message("assistant", "x")) == [Message("user", "turn 1 of 2")]
        assert await environment.step(second, Message("assistant", "x")) == [Message("user", "turn 1 of 2")]
        assert await environment.step(first, Message("assistant", "x")) is None
        rollouts = [rollout("a"), rollout()]
        scores = await environment.score_group(problem, rollouts)
        assert scores[0] == 0.5
        assert rollouts[0].metrics == {"length": 1.0}
        assert (type(scores[1]).__name__, str(scores[1])) == ("ValueError", "nothing was said")

    played(guest, act)


@pytest.mark.parametrize(("reply", "named"), [("tool", "ToolError"), ("bug", "KeyError")])
def test_an_error_over_there_is_the_same_error_here(guest: Run, reply: str, named: str) -> None:
    async def act(environment: Isolated) -> Exception | None:
        state = await environment.start(await asyncio.to_thread(environment.problem, Split.TRAIN, 0))
        try:
            await environment.step(state, Message("assistant", reply))
        except Exception as error:  # noqa: BLE001 - whichever it is
            return error
        return None

    assert type(played(guest, act)).__name__ == named


def test_a_process_that_dies_fails_what_waits_with_its_last_words(guest: Run) -> None:
    async def act(environment: Isolated) -> None:
        state = await environment.start(await asyncio.to_thread(environment.problem, Split.TRAIN, 0))
        with pytest.raises(EnvironmentDied, match=r"exit code 9\): .*last words"):
            await environment.step(state, Message("assistant", "crash"))
        assert not environment.is_alive

    played(guest, act)


@pytest.mark.slow
def test_processes_that_exceed_a_limit_together_are_ended_with_the_limit(
    guest: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLYARD_LIMIT_MEMORY_GIB", "0.5")

    async def act(environment: Isolated) -> None:
        state = await environment.start(await asyncio.to_thread(environment.problem, Split.TRAIN, 0))
        for _ in range(2):  # what waits, and what asks afterwards
            with pytest.raises(
                EnvironmentDied, match=r"exit code -9\): it used [\d,]+ bytes of memory, of 536,870,912"
            ):
                await environment.step(state, Message("assistant", "grow"))
        assert not environment.is_alive

    played(guest, act)


def test_its_code_reads_no_secret_and_has_no_network(guest: Run, tmp_path: Path, settings: Any) -> None:
    secret = tmp_path / "secret_key"
    secret.write_text("the key")

    async def act(environment: Isolated) -> str:
        state = await environment.start(await asyncio.to_thread(environment.problem, Split.TRAIN, 0))
        (told,) = await environment.step(state, Message("assistant", "look")) or []
        return told.content

    seen = played(guest, act, secret=str(secret))
    assert seen == repr({"secret": False, "variables": [], "interfaces": ["lo"]})
    assert "guest_environment" not in sys.modules, "none of it was imported here"


def test_arguments_it_does_not_take_are_refused(guest: Run) -> None:
    async def act(_environment: Isolated) -> None:
        raise AssertionError("it was made")

    with pytest.raises(RegistryError, match="unknown field `colour`"):
        played(guest, act, colour="red")


def test_one_that_is_given_up_while_it_starts_leaves_nothing(guest: Run) -> None:
    ref = EnvironmentRef(name="guest")
    mark = f"\0HOME={isolation.scratch_of(guest, ref)}\0".encode()

    def left() -> set[int]:
        found = set()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in b"\0" + path.read_bytes():
                    found.add(int(path.parent.name))
        return found

    async def give_up_after(seconds: float) -> None:
        loading = asyncio.create_task(isolation.load(guest, ref))
        await asyncio.wait({loading}, timeout=seconds)
        loading.cancel()
        await asyncio.wait({loading}, timeout=10)
        assert loading.done(), f"given up after {seconds} s it does not end"
        if not loading.cancelled():
            await isolation.close(loading.result())

    for milliseconds in range(3, 90, 3):
        asyncio.run(give_up_after(milliseconds / 1000))
    eventually(lambda: not left(), what=lambda: f"processes {left()}")
