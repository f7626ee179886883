"""json_schema: valid JSON of the wanted form, and nothing fetched to find out."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from environments.errors import InvalidArguments
from tests.environments.rewards.replying import problem, score
from tests.http_server import Handler, serving

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": "^[a-z]+$"}, "age": {"type": "integer"}},
    "required": ["name"],
    "additionalProperties": False,
}
RIGHT = '{"name": "ada", "age": 36}'


@pytest.mark.parametrize(
    ("reply", "parameters", "reward"),
    [
        (RIGHT, {}, 1),
        (f"Here:\n```json\n{RIGHT}\n```\nDone.", {}, 1),
        (f"Here:\n```json\n{RIGHT}\n```\nDone.", {"within": "all"}, 0),
        (RIGHT, {"within": "fence"}, 0),
        (f"Here: {RIGHT}", {}, 0),
        (f"Here: <json>{RIGHT}</json>", {"tag": "json"}, 1),
        (f"Here: <json>\n```\n{RIGHT}\n```\n</json>", {"tag": "json"}, 1),
        (RIGHT, {"tag": "json"}, 0),
        ('{"name": "Ada"}', {}, 0),
        ('{"age": 36}', {}, 0),
        ('{"name": "ada", "age": "36"}', {}, 0),
        ('{"name": "ada", "more": 1}', {}, 0),
        ("{'name': 'ada'}", {}, 0),
        ('{"name": "ada"', {}, 0),
        ('{"name": "ada", "age": NaN}', {}, 0),
        ("", {}, 0),
    ],
)
def test_only_valid_json_of_the_form_earns(reply: str, parameters: dict[str, Any], reward: float) -> None:
    assert score("json_schema", problem(), reply, schema=SCHEMA, **parameters) == reward
    assert score("json_schema", problem(schema=SCHEMA), reply, **parameters) == reward


def test_a_reference_is_not_fetched() -> None:
    fetched = []

    class Remote(Handler):
        def do_GET(self) -> None:
            fetched.append(self.path)
            self.answer(200, b"{}")

    with serving(Remote) as url, pytest.raises(InvalidArguments, match=r"schema: .*not present"):
        score("json_schema", problem(), "1", schema={"$ref": f"{url}/schema"})
    assert fetched == []


def test_a_reference_to_a_file_is_not_read() -> None:
    with pytest.raises(InvalidArguments, match=r"schema: .*not present"):
        score("json_schema", problem(), "1", schema={"$ref": "file:///etc/hostname"})


def test_json_that_is_deeper_than_any_schema_needs_is_wrong_and_breaks_nothing() -> None:
    nested = {"type": "array", "items": {"$ref": "#"}}
    assert score("json_schema", problem(), "[" * 100 + "]" * 100, schema=nested) == 1
    assert score("json_schema", problem(), "[" * 100_000 + "]" * 100_000, schema=nested) == 0


def test_a_pattern_of_a_schema_takes_linear_time() -> None:
    text = '"' + "a" * 100_000 + 'b"'
    assert score("json_schema", problem(), text, schema={"type": "string", "pattern": "^(a+)+$"}) == 0


def test_a_schema_that_is_none_is_named() -> None:
    with pytest.raises(InvalidArguments, match="'json_schema': schema: "):
        score("json_schema", problem(), "1", schema={"type": "number of sheep"})


@example('{"":0,"":0}')
@given(st.text(max_size=50))
def test_no_text_but_json_earns(text: str) -> None:
    if score("json_schema", problem(), text, schema={"type": "object"}):
        assert isinstance(json.loads(text), dict)
