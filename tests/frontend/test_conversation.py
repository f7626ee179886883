"""What of a stored message is shown: everything, and whatever shape it has."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from frontend.conversation import ShownCall, in_a_line, spoken, told
from rollouts.models import Rollout
from tests import store
from tests.factories import make_group, make_run

CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a":1, "b":"é"}'}}


def test_calls_are_shown_with_their_arguments_as_json_or_as_they_were_written() -> None:
    broken = {"id": "call_2", "function": {"name": "add", "arguments": "{a: 1"}}
    said = spoken({"role": "assistant", "content": None, "tool_calls": [CALL, broken]})
    assert said.calls == [ShownCall("call_1", "add", '{"a": 1, "b": "é"}'), ShownCall("call_2", "add", "{a: 1")]
    assert in_a_line({"role": "assistant", "tool_calls": [CALL]}) == 'add({"a": 1, "b": "é"})'


@pytest.mark.parametrize("value", [None, 7, True, "text", ["a", {"text": "b"}, 3, None], {"x": [1]}, [[["deep"]]]])
@pytest.mark.parametrize("key", ["role", "name", "content", "tool_calls", "tool_call_id", "reasoning_content"])
def test_no_shape_breaks_it(key: str, value: Any) -> None:
    said = spoken({"role": "assistant", "content": "x"} | {key: value})
    assert all(isinstance(each, str) for each in said if not isinstance(each, list))
    assert isinstance(in_a_line({key: value}), str)
    assert all(isinstance(text, str) for tool in told([{key: value}, {"function": value}]) for text in tool)


@pytest.mark.django_db
def test_a_group_shows_tools_calls_results_and_reasoning(client: Client) -> None:
    run = make_run()
    group = make_group(run, rewards=[1.0, 0.0])
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "1 and 2?"}]},
        {"role": "assistant", "reasoning_content": "I shall <add>.", "tool_calls": [CALL]},
        {"role": "tool", "content": "three", "tool_call_id": "call_1"},
    ]
    tools = [{"type": "function", "function": {"name": "add", "description": "Adds \u202e.", "parameters": {}}}]
    with store.beyond_rights():
        Rollout.objects.filter(group=group).update(messages=messages, tools=tools)
    page = client.get(reverse("group", args=[run.key, group.key])).content.decode()
    for text in (
        "1 and 2?",
        "I shall &lt;add&gt;.",
        "<code>add</code>",
        "{&quot;a&quot;: 1",
        "answers call_1",
        "three",
    ):
        assert text in page
    assert page.count("1 tool it may call") == 1
    assert "\u202e" not in page
    assert "add({&quot;a&quot;: 1" in client.get(reverse("run-rollouts", args=[run.key])).content.decode()
