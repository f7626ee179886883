"""Flawed examples for a warm-up."""

import json

import pytest

from environments.__main__ import main


def test_an_echo_share_of_the_examples_repeats_the_problem(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["solutions", "reverse_text", "--n", "400", "--echo", "0.65"]) == 0
    lines = [json.loads(line)["messages"] for line in capsys.readouterr().out.splitlines()]
    echoes = [messages for messages in lines if messages[-1]["content"] == messages[-2]["content"]]
    right = [messages for messages in lines if messages[-1]["content"] == messages[-2]["content"][::-1]]
    assert len(echoes) + len(right) >= len(lines) == 400
    assert 0.55 < len(echoes) / len(lines) < 0.75
