"""Agent frameworks as people install them, in a virtual environment of their own, play a session token by token."""

import asyncio
import os
from pathlib import Path

import pytest

from environments.env import SessionAddress
from tests.environments.speaking import END, call, check_recorded, speaking
from trainers.model.tiny_tools import tool_tokenizer

pytestmark = pytest.mark.slow

VENV = Path(__file__).parents[2] / ".venv-agents"
PROGRAMS = Path(__file__).parent / "frameworks"
LOOP = [
    f"<think>\nOne by one.\n</think>\n\nLet me see.\n{call(1, 2)}",
    call(3, 4),
    f"It is 7.{END}",
    f"<think>\nOnce more.\n</think>\n\n{call(7, 1)}",
    f"Then it is 8.{END}",
]
DEADLINE_S = 60


@pytest.fixture(scope="module")
def python() -> Path:
    """Of the frameworks."""
    if not (VENV / ".installed").exists():
        pytest.skip(f"needs agent frameworks in {VENV.name}: run `make agents-venv`, which needs a package index")
    return VENV / "bin" / "python"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tools")
    tool_tokenizer().save_pretrained(made)
    return made


@pytest.mark.parametrize(
    "program",
    [
        "with_openai_agents.py responses",
        "with_openai_agents.py chat_completions",
        "with_pydantic_ai.py chat_completions",
        "with_pydantic_ai.py responses",
        "with_pydantic_ai.py messages",
    ],
)
def test_a_framework_plays_a_loop_of_tools_in_one_branch(python: Path, directory: Path, program: str) -> None:
    async def play() -> None:
        async with speaking(directory, LOOP) as (session, address, policy):
            assert await _output(python, program, address) == "It is 7.\nThen it is 8.\n"
            rollout = session.end()
            check_recorded(rollout, policy.log)
            assert [message.role for message in rollout.messages] == [
                *("system", "user", "assistant", "tool", "assistant", "tool", "assistant"),
                *("user", "assistant", "tool", "assistant"),
            ]
            results = [message.text for message in rollout.messages if message.role == "tool"]
            assert results == ["3", "7", "8"]
            assert rollout.messages[0].text == "Be brief."
            assert rollout.tools[0]["function"]["name"] == "add"

    asyncio.run(play())


async def _output(python: Path, program: str, address: SessionAddress) -> str:
    name, *arguments = program.split()
    environment = {
        "PATH": os.environ["PATH"],
        "OPENAI_BASE_URL": address.base_url,
        "OPENAI_API_KEY": address.api_key,
        "ANTHROPIC_BASE_URL": address.base_url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": address.api_key,
    }
    process = await asyncio.create_subprocess_exec(
        *(str(python), "-I", str(PROGRAMS / name), *arguments),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(DEADLINE_S):
            out, told = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, told.decode()[-3000:]
    return out.decode()
