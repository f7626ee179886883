"""dataset: any columns, by a template or by conversations."""

from pathlib import Path
from typing import Any

import pytest

from environments.errors import InvalidArguments
from environments.types import Split
from tests.environments.library_data.tables import asked, loaded, problems, score, solved, write

KINDS = ["jsonl", "parquet"]


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {"word": f"w{number}", "letters": number, "Long name": f"L{number}", "answer": f"W{number}"}
        for number in range(count)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_template_puts_columns_into_a_text(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"test.{kind}", rows(8))
    environment = loaded("dataset", path, prompt="{word} of {letters} {{letters}}: {Long name}")
    everything = asked(environment, Split.TRAIN) | asked(environment, Split.EVAL)
    assert everything == {f"w{number} of {number} {{letters}}: L{number}" for number in range(8)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_of_texts_is_asked_as_it_is(tmp_path: Path, kind: str) -> None:
    write(tmp_path / f"test.{kind}", rows(3))
    environment = loaded("dataset", tmp_path, prompt="word", instruction="In capitals, please.", system="Be brief.")
    for problem in problems(environment, Split.EVAL):
        system, user = problem.messages
        assert (system.role, system.text) == ("system", "Be brief.")
        assert user.text == f"{problem.data['answer'].lower()}\n\nIn capitals, please."
        assert solved(environment, problem) == 1.0
        assert score(environment, problem, problem.data["answer"].lower()) == 0.0
        assert score(environment, problem, "") == 0.0


def conversation(number: int) -> list[dict[str, Any]]:
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    return [
        {"role": "system", "content": "You add."},
        {"role": "user", "content": f"{number} + 1"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": str(number + 1), "tool_call_id": "c"},
        {"role": "assistant", "content": "Done. And now?"},
        {"role": "user", "content": f"{number} + 2"},
        {"role": "assistant", "content": f"{number + 2}"},
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_conversation_is_asked_without_the_reply_at_its_end(tmp_path: Path, kind: str) -> None:
    write(tmp_path / f"test.{kind}", [{"messages": conversation(number)} for number in range(3)])
    environment = loaded("dataset", tmp_path, prompt="messages", answer="messages", instruction="Only the number.")
    for problem in problems(environment, Split.EVAL):
        roles = [message.role for message in problem.messages]
        assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
        number = int(problem.messages[1].text.split()[0])
        assert problem.messages[-1].text == f"{number} + 2\n\nOnly the number."
        assert problem.messages[2].tool_calls[0].function.name == "add"
        assert problem.data == {"answer": f"{number + 2}"}
        assert solved(environment, problem) == 1.0


def test_a_system_message_of_the_arguments_takes_the_place_of_the_conversation_s(tmp_path: Path) -> None:
    write(tmp_path / "test.jsonl", [{"messages": conversation(1)}])
    environment = loaded("dataset", tmp_path, prompt="messages", answer="messages", system="Add.")
    found = [message.text for message in environment.problem(Split.EVAL, 0).messages if message.role == "system"]
    assert found == ["Add."]


def test_rewards_read_the_columns_that_are_kept(tmp_path: Path) -> None:
    write(tmp_path / "test.parquet", rows(2))
    parts = [{"name": "exact", "args": {"field": "letters", "take": "number"}}]
    environment = loaded("dataset", tmp_path, prompt="word", answer="", keep=["letters"], rewards=parts)
    for problem in problems(environment, Split.EVAL):
        assert problem.data == {"letters": int(problem.messages[0].text[1:])}
        assert score(environment, problem, f"It has {problem.data['letters']}.") == 1.0
        assert environment.solution(problem) is None


def test_several_answers_may_be_right(tmp_path: Path) -> None:
    write(tmp_path / "test.jsonl", [{"q": "Which?", "answer": ["one", "two"]}])
    environment = loaded("dataset", tmp_path, prompt="q")
    problem = environment.problem(Split.EVAL, 0)
    assert [score(environment, problem, reply) for reply in ("one", "two", "three")] == [1.0, 1.0, 0.0]
    assert solved(environment, problem) == 1.0


def test_what_is_held_out_does_not_depend_on_the_words_around_it(tmp_path: Path) -> None:
    path = write(tmp_path / "all.jsonl", rows(200))
    plain, other = (
        loaded("dataset", path, prompt="word", instruction=instruction, system=instruction)
        for instruction in ("", "In capitals, please.")
    )
    for split in Split:
        keys = [{problem.key for problem in problems(each, split)} for each in (plain, other)]
        assert keys[0] == keys[1]
        assert keys[0]


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({"prompt": "{missing}"}, "has no column missing; it has word"),
        ({"prompt": "words"}, r"prompt: it is no column and has no {column} in it; there are word, letters"),
        ({"prompt": "{word"}, "prompt: .*write {{ and }} for braces"),
        ({"prompt": "{word!r}"}, "prompt: {column} takes no format"),
        ({"prompt": "{letters:03d}"}, "prompt: {column} takes no format"),
        ({"prompt": "{word.__class__}"}, "has no column word.__class__"),
        ({"prompt": "word", "answer": "label"}, "has no column label"),
        ({"prompt": "word", "keep": ["more"]}, "has no column more"),
        ({"prompt": "word", "answer": ""}, "rewards: name some"),
        ({}, "`prompt`"),
    ],
)
def test_arguments_that_name_nothing_are_refused(tmp_path: Path, args: dict[str, Any], told: str) -> None:
    write(tmp_path / "test.jsonl", rows(3))
    with pytest.raises(InvalidArguments, match=told):
        loaded("dataset", tmp_path, **args)


@pytest.mark.parametrize(
    "bad",
    [
        {"prompt": ""},
        {"prompt": None},
        {"prompt": []},
        {"prompt": [{"role": "king", "content": "x"}]},
        {"prompt": [{"role": "assistant", "content": "x"}]},
        {"prompt": ["x"]},
        {"prompt": 3},
        {"answer": ""},
        {"answer": None},
        {"answer": []},
    ],
)
def test_rows_that_ask_nothing_are_left_out(tmp_path: Path, bad: dict[str, Any]) -> None:
    good = [{"prompt": f"{number}?", "answer": "yes"} for number in range(3)]
    write(tmp_path / "test.jsonl", [*good, {"prompt": "4?", "answer": "yes"} | bad])
    assert loaded("dataset", tmp_path, prompt="prompt").count(Split.EVAL) == 3
