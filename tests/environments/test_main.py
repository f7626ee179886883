"""`python -m environments` works where neither Django nor torch was ever installed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # each starts an interpreter
ROOT = Path(__file__).parents[2]
FORBIDDEN = ("django", "celery", "channels", "psycopg", "torch", "transformers", "vllm", "pydantic")


def environments(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "environments", *args], cwd=ROOT, capture_output=True, text=True, timeout=60
    )


def test_the_package_imports_nothing_heavy() -> None:
    code = f"""
import pkgutil, sys
import environments
for module in pkgutil.iter_modules(environments.__path__):
    if module.name != "__main__":
        __import__(f"environments.{{module.name}}")
print([name for name in {FORBIDDEN!r} if name in sys.modules])
"""
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert found.stdout.strip() == "[]", found.stderr


def test_list_names_every_environment_and_its_arguments() -> None:
    found = environments("list")
    assert found.returncode == 0
    assert "reverse_text" in found.stdout
    assert "max_length = 8" in found.stdout


def test_solutions_are_conversations_from_the_training_split() -> None:
    found = environments("solutions", "reverse_text", "--n", "3", "--args", '{"min_length": 4, "max_length": 4}')
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    assert len(lines) == 3
    for line in lines:
        assert list(line) == ["messages"]
        _, question, answer = line["messages"]
        assert (question["role"], answer["role"]) == ("user", "assistant")
        assert answer["content"] == question["content"][::-1]
        assert len(answer["content"]) == 4


def test_play_reports_an_unreachable_server_as_failed_rollouts() -> None:
    found = environments("play", "reverse_text", "--base-url", "http://127.0.0.1:9/v1", "--n", "2", "--json")
    assert found.returncode == 1
    (line,) = found.stdout.splitlines()
    group = json.loads(line)
    assert (group["environment"], group["environment_version"]) == ("reverse_text", "3")
    assert [rollout["error"]["kind"] for rollout in group["rollouts"]] == ["policy"] * 2


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["play", "nothing"], "Known: alphabet_sort, atropos"),
        (["solutions", "reverse_text", "--args", '{"wrods": 2}'], "unknown field `wrods`"),
        (["solutions", "reverse_text", "--args", "2"], "not a JSON object"),
        (["play", "reverse_text", "--max-tokens", "0"], "max_tokens"),
    ],
)
def test_a_mistake_in_the_command_is_told_in_one_line_without_a_traceback(args: list[str], words: str) -> None:
    found = environments(*args)
    assert found.returncode == 2
    assert words in found.stderr
    assert "Traceback" not in found.stderr
