"""What a program of the policy may try against its machine, as a call of the tool `python` and as a reply to `code`.

One table. Each program prints ESCAPED if it did what it must not, so it earns by escaping and by nothing else. All run
beside each other; what they leave behind is looked for when all have ended.
"""

import asyncio
import json
import re
import socket
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from environments import registry
from environments.config import SamplingParams
from environments.env import Environment
from environments.fakes import ScriptedPolicy
from environments.rewards.judged_code.runner import BUSY
from environments.runner import play_group
from environments.sandbox import tools
from environments.sandbox.call import SandboxCall, SandboxResult
from environments.sandbox.engine import Engine
from environments.types import Message, Problem, Split
from tests.environments.library_tools.abuses import ABUSES, PRELUDE
from tests.environments.library_tools.playing import CALL, CallingByLine, rollout_of
from tests.environments.sandbox.programs import PATIENCE_S, left_of, needs_sandbox

pytestmark = [needs_sandbox, pytest.mark.slow]

LIMIT_S = 2.0
MOST_S = {"python": LIMIT_S, "code": BUSY * LIMIT_S}
"""Of the clock; replies to `code` have so many more than of the processor, so that a busy machine fails nobody."""
AT_ONCE = 4
"""Programs: more of those that bomb would measure the machine."""
MISTAKEN = re.compile("(Name|Type|Attribute|Syntax|Index|Key)Error")
"""A program that did not try what it says."""
ESCAPED = "ESCAPED"


class Ended(NamedTuple):
    """What came of a program."""

    reward: float
    told: str
    took_s: float
    """From the start of its sandbox until nothing of it was left."""


class Timing:
    """The real engine, and how long it took for each program. What waits for others to end is not counted."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.took: dict[str, float] = {}

    async def run(self, call: SandboxCall) -> SandboxResult:
        """As `Engine.run`."""
        done = await self._engine.run(call)
        [word] = re.findall(rb"# of ([0-9a-f]{32})", b"".join(call.files.values()) + call.stdin)
        self.took[word.decode()] = done.wall_s
        return done


@pytest.fixture
def facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What a program could find on this machine if it got out."""
    secret, marker = uuid.uuid4().hex, uuid.uuid4().hex
    path = tmp_path / "secret"
    path.write_text(secret)
    for above in (path, *list(path.parents)[:3]):
        above.chmod(above.stat().st_mode | 0o005)
    monkeypatch.setenv("ROLLYARD_SECRET_KEY", secret)
    victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", marker])
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as abstract:
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        abstract.bind(f"\0{marker}")
        abstract.listen()
        yield {
            "marker": marker,
            "secret": secret,
            "path": str(path),
            "victim": victim,
            "told": (marker, secret, str(path), victim.pid, tcp.getsockname()[1], marker),
        }
    victim.kill()
    victim.wait()


@pytest.fixture
def timing() -> Iterator[Timing]:
    engine = Timing(tools.default())
    tools.use(engine)
    yield engine
    tools.use(None)


def program(source: str, facts: tuple[Any, ...], word: str) -> str:
    """Whole, and with a word by which its sandbox is known."""
    return f"# of {word}\n{PRELUDE.replace('__FACTS__', repr(facts))}\n{textwrap.dedent(source)}"


async def as_tool_call(code: str, environment: Environment[Any]) -> tuple[float, str]:
    """The policy calls the tool with it, and answers nothing."""
    problem = environment.problem(Split.TRAIN, 0)
    policy = ScriptedPolicy([f"{CALL}python {json.dumps({'code': code})}", "<answer></answer>"])
    params = SamplingParams(max_turns=2, max_tokens=100_000)
    [rollout] = await play_group(environment, problem, policy, params, 1, deadline_s=240, chat=CallingByLine(policy))
    assert rollout.error is None, rollout.error
    return rollout.reward or 0.0, next(message.text for message in rollout.messages if message.role == "tool")


async def as_reply(code: str, environment: Environment[Any]) -> tuple[float, str]:
    """The policy replies with it where a program is asked for that prints ESCAPED."""
    data = {"pairs": [["", f"{ESCAPED}\n"]], "solution": ""}
    problem = Problem(key="escape", messages=[Message("user", "escape")], data=data)
    rollout = rollout_of(problem, Message("assistant", f"```python\n{code}\n```"))
    [score] = await environment.score_group(problem, [rollout])
    assert isinstance(score, float), score
    return score, ESCAPED if score else ""


async def all_ended(sources: dict[str, str], facts: tuple[Any, ...], timing: Timing) -> dict[str, Ended]:
    python = registry.load("python", {"call_s": LIMIT_S})
    code = registry.load("code", {"wall_s": LIMIT_S, "test_s": LIMIT_S})

    free = asyncio.Semaphore(AT_ONCE)

    async def ended(source: str, play: Any, environment: Environment[Any]) -> Ended:
        word = uuid.uuid4().hex
        async with free:
            return Ended(*await play(program(source, facts, word), environment), timing.took[word])

    ways = {"python": (as_tool_call, python), "code": (as_reply, code)}
    names = [(f"{name} ({way})", source, *each) for name, source in sources.items() for way, each in ways.items()]
    found = await asyncio.gather(*(ended(*each) for _, *each in names))
    return dict(zip((name for name, *_ in names), found, strict=True))


def test_none_of_the_abuses_succeeds_and_each_ends_in_time(facts: dict[str, Any], timing: Timing) -> None:
    assert len(ABUSES) >= 60
    found = asyncio.run(all_ended(ABUSES, facts["told"], timing))
    assert [name for name, ended in found.items() if ESCAPED in ended.told or ended.reward > 0.1] == []
    assert [(name, ended.told) for name, ended in found.items() if MISTAKEN.search(ended.told)] == []
    for way, most_s in MOST_S.items():
        took_s = {name: ended.took_s for name, ended in found.items() if name.endswith(f"({way})")}
        assert {name: seconds for name, seconds in took_s.items() if seconds > most_s + PATIENCE_S} == {}
    assert len(left_of(facts["marker"])) == 1  # the victim, which nobody killed
    assert facts["victim"].poll() is None
    assert Path(facts["path"]).read_text() == facts["secret"]
    places = [Path(place) for place in ("/tmp", "/dev/shm", "/var/tmp", "/run")]
    assert [path for place in places for path in place.glob(f"{facts['marker']}*")] == []


def test_whoever_escaped_would_be_found(facts: dict[str, Any], timing: Timing) -> None:
    found = asyncio.run(all_ended({"escapes": "escaped()"}, facts["told"], timing))
    assert [ended.told.strip() for ended in found.values()] == [ESCAPED] * 2
    assert found["escapes (code)"].reward == 1.0
