"""tool_calls: the calls that were expected, and no other."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.types import FunctionCall, Message, ToolCall
from tests.environments.rewards.replying import problem, rollout, score, spoken

ADD = {"name": "add", "arguments": {"a": 1, "b": [2, {"c": "x"}]}}
SAY = {"name": "say", "arguments": {"text": "hi"}}


def called(*calls: dict[str, Any], text: str = "") -> Any:
    return rollout(text, calls=[(call["name"], json.dumps(call["arguments"])) for call in calls])


@pytest.mark.parametrize(
    ("made", "parameters", "reward"),
    [
        ([ADD, SAY], {}, 1),
        ([SAY, ADD], {}, 1),
        ([SAY, ADD], {"ordered": True}, 0.5),
        ([ADD, SAY], {"ordered": True}, 1),
        ([ADD], {}, 0.5),
        ([ADD], {"partial": False}, 0),
        ([ADD, SAY], {"partial": False}, 1),
        ([ADD, SAY, SAY, SAY], {}, 0.5),
        ([ADD, SAY, SAY, SAY], {"ordered": True}, 0.5),
        ([], {}, 0),
        ([{"name": "add", "arguments": {"a": 2}}, SAY], {}, 0.5),
        ([{"name": "add", "arguments": {"a": 2}}, SAY], {"name_share": 0.5}, 0.75),
        ([{"name": "add", "arguments": {"a": 2}}, ADD], {"name_share": 0.5}, 0.5),
        ([{"name": "subtract", "arguments": ADD["arguments"]}], {"name_share": 0.5}, 0),
    ],
)
def test_the_share_of_expected_calls_counts(
    made: list[dict[str, Any]], parameters: dict[str, Any], reward: float
) -> None:
    assert score("tool_calls", problem(calls=[ADD, SAY]), called(*made), **parameters) == reward


@pytest.mark.parametrize(
    ("arguments", "reward"),
    [
        ('{"a": 1}', 1),
        ('{"a": 1.0}', 1),
        ('{"a": true}', 0),
        ('{"a": "1"}', 0),
        ('{"a": 1, "b": 1}', 0),
        ("{}", 0),
        ("", 0),
        ("1", 0),
        ("{", 0),
        ('{"a": ' * 100_000, 0),
        ("\ud800", 0),
    ],
)
def test_arguments_are_compared_as_json(arguments: str, reward: float) -> None:
    expected = problem(calls=[{"name": "f", "arguments": {"a": 1}}])
    assert score("tool_calls", expected, rollout("", calls=[("f", arguments)])) == reward


def test_expected_arguments_may_be_a_text_of_json() -> None:
    expected = problem(calls=[{"name": "f", "arguments": '{"a": 1}'}, {"name": "g"}])
    assert score("tool_calls", expected, rollout("", calls=[("g", ""), ("f", '{"a":1}')])) == 1


def test_calls_of_all_turns_count_and_those_of_the_problems_examples_do_not() -> None:
    def calling(call: dict[str, Any]) -> Message:
        function = FunctionCall(call["name"], json.dumps(call["arguments"]))
        return Message("assistant", None, tool_calls=[ToolCall("1", function)])

    asked = problem(calls=[ADD, SAY])
    turns = [*asked.messages, calling(ADD), Message("tool", "3", tool_call_id="1"), calling(SAY)]
    assert score("tool_calls", asked, spoken(turns)) == 1
    shown = type(asked)(key="k", messages=turns[:3], data=asked.data)
    assert score("tool_calls", shown, spoken(turns)) == 0.5


def test_where_no_call_is_expected_words_are() -> None:
    none = problem(calls=[])
    assert score("tool_calls", none, rollout("I cannot do that.")) == 1
    assert score("tool_calls", none, rollout("")) == 0
    assert score("tool_calls", none, called(ADD, text="I can.")) == 0


def test_a_thousand_calls_cost_no_more_than_some() -> None:
    assert score("tool_calls", problem(calls=[ADD]), called(*[ADD] * 10_000), ordered=True) == 1 / 10_000


@given(st.lists(st.sampled_from("abc"), max_size=6), st.lists(st.sampled_from("abc"), min_size=1, max_size=6))
def test_order_can_only_cost(made: list[str], expected: list[str]) -> None:
    def calls(names: list[str]) -> list[dict[str, Any]]:
        return [{"name": name, "arguments": {}} for name in names]

    asked, played = problem(calls=calls(expected)), called(*calls(made))
    ordered, any_order = (score("tool_calls", asked, played, ordered=each) for each in (True, False))
    assert 0 <= ordered <= any_order <= 1
    assert (ordered == 1) == (made == expected)
    assert (any_order == 1) == (sorted(made) == sorted(expected))


@pytest.mark.parametrize("calls", [["add"], [{"arguments": {}}], [{"name": "f", "arguments": "{"}], 7])
def test_what_is_no_list_of_calls_is_named(calls: object) -> None:
    with pytest.raises(ValueError, match=r"field: 'calls' of problem.data is no list"):
        score("tool_calls", problem(calls=calls), rollout(""))
