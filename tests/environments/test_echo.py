"""Flawed examples for a warm-up."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from environments.__main__ import main


def test_an_echo_share_of_the_examples_repeats_the_problem(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["solutions", "reverse_text", "--n", "400", "--echo", "0.65"]) == 0
    lines = [json.loads(line)["messages"] for line in capsys.readouterr().out.splitlines()]
    echoes = [messages for messages in lines if messages[-1]["content"] == messages[-2]["content"]]
    right = [messages for messages in lines if messages[-1]["content"] == messages[-2]["content"][::-1]]
    assert len(echoes) + len(right) >= len(lines) == 400
    assert 0.55 < len(echoes) / len(lines) < 0.75


def test_the_virtual_environment_of_a_bridge_gives_the_same_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """It has msgspec and this package, and nothing else of ours."""
    words = ["reverse_text", "--n", "3", "--echo", "0.5", "--args", '{"words": 2}']
    assert main(["solutions", *words]) == 0
    ours = capsys.readouterr().out
    hidden = "import sys, runpy; sys.modules['httpx'] = sys.modules['numpy'] = None; "
    bare = hidden + "runpy.run_module('environments.solutions', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", bare, *words], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == (ours, "")
