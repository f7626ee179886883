"""Versions as rows: the right words are trained, each row says where it is from, and nothing that comes later shows."""

import json
from typing import Any
from unittest.mock import patch

import pytest

from environments.types import FunctionCall, Message, PlayedGroup, PlayedRollout, ToolCall
from rollouts.errors import Invalid
from rollouts.models import DatasetVersion, ExportForm, Run, ScoredGroup
from rollouts.services.curation.exchange import Line
from rollouts.services.datasets import importing, making, rendering
from rollouts.services.datasets.choosing import Recipe
from tests.factories import make_project, somebody
from tests.rollouts import story
from tests.rollouts.datasets.test_making import correct, make, played, say
from trainers.data.examples import Conversation, Tokens, parse_example, parse_pair

pytestmark = pytest.mark.django_db
SFT, KTO, DPO = ExportForm.SFT, ExportForm.KTO, ExportForm.DPO


@pytest.fixture
def run() -> Run:
    run = story.launch()
    story.submit(run, [played("a", [0.5, 1.0]), played("b", [0.0, 0.25])], actor="api:t")
    return run


def submit(run: Run, *rollouts: PlayedRollout, key: str = "x") -> None:
    group = PlayedGroup(
        key=key, environment="reverse_text", environment_version="7", problem_key="p", rollouts=list(rollouts)
    )
    story.submit(run, [group], actor="api:t")


def lines(version: DatasetVersion, form: ExportForm = SFT) -> list[bytes]:
    return [line for page in rendering.pages(version, form) for _, line in page.rows]


def rows(version: DatasetVersion, form: ExportForm = SFT) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines(version, form)]


def left_out(version: DatasetVersion, form: ExportForm = SFT) -> dict[str, int]:
    return dict(sum((page.left_out for page in rendering.pages(version, form)), rendering.Counter()))


def imported(run: Run, given: list[dict[str, Any]], form: str = "examples") -> DatasetVersion:
    """A version made of the lines of a file."""
    of_file = [Line(f"f:{at}", json.dumps(row).encode()) for at, row in enumerate(given)]
    return importing.import_rows(run.project, name="file", form=form, lines=of_file, source="f", actor="user:cy")


def test_a_row_has_prompt_and_completion_and_where_it_is_from(run: Run) -> None:
    label = say("a", rollout=1, by="ada")
    first = rows(make(run, best=1))[0]
    assert first == {
        "prompt": [{"role": "user", "content": "Say a"}],
        "completion": [{"role": "assistant", "content": "a1"}],
        "tools": None,
        "run": run.key,
        "step": None,
        "environment": "reverse_text",
        "environment_version": "",
        "policy_version": 0,
        "teacher": None,
        "problem_key": "a",
        "group": "a",
        "rollout": 1,
        "seat": None,
        "branch": None,
        "reward": 1.0,
        "labellers": [label.actor],
        "guidelines": [],
        "human": False,
        "original": None,
    }


def test_the_same_version_is_the_same_bytes_whatever_is_said_and_trained_later() -> None:
    run, epoch = story.train()
    story.step(run, epoch, 0)
    story.generate(run)
    say(ScoredGroup.objects.filter(state="trained").earliest("id").key, rollout=0, by="ada")
    version = make(run)
    before = lines(version)
    assert {row["step"] for row in rows(version)} == {0, None}
    for group in ScoredGroup.objects.filter(run=run):
        say(group.key, "reject", by="bob")
    story.step(run, epoch, 1)
    assert ScoredGroup.objects.filter(run=run, batch_items__batch__step=1).exists()
    assert lines(version) == before
    assert {row["step"] for row in rows(make(run, rejected=True), KTO)} >= {0, 1}


def test_an_assistant_shown_in_the_prompt_is_not_trained_and_the_policys_turns_are(run: Run) -> None:
    shown = [Message("user", "2+2"), Message("assistant", "4"), Message("user", "3+3")]
    said = [Message("assistant", "let me see"), Message("user", "so?"), Message("assistant", "6")]
    two_turns = {"token_ids": list(range(8)), "loss_mask": [0, 0, 1, 1, 0, 1, 1, 1], "inference_logprobs": [0.0] * 8}
    submit(
        run, story.rollout(1.0, messages=[*shown, *said], **two_turns), story.rollout(0.0, messages=[*shown, said[0]])
    )
    version = make(run, best=1, min_reward=1.0, runs=[run.key])
    row = next(each for each in rows(version) if each["group"] == "x")
    assert [message["content"] for message in row["prompt"]] == ["2+2", "4", "3+3"]
    assert [message["content"] for message in row["completion"]] == ["let me see", "so?", "6"]
    line = next(line for line in lines(version) if b'"x"' in line)
    example = parse_example(line, "f:1", ["assistant"])
    assert isinstance(example, Conversation)
    assert example.prompt_messages == 3


def test_pairs_have_one_prompt_and_kto_says_what_is_wanted(run: Run) -> None:
    [first, _] = rows(make(run, name="pairs", form="pairs"), DPO)
    assert [message["content"] for message in first["prompt"]] == ["Say a"]
    assert (first["chosen"][0]["content"], first["rejected"][0]["content"]) == ("a1", "a0")
    assert (first["chosen_reward"], first["rejected_reward"], first["rejected_rollout"]) == (1.0, 0.5, 0)
    version = make(run, unwanted_below=0.5)
    assert [(row["completion"][0]["content"], row["label"]) for row in rows(version, KTO)] == [
        ("a1", True),
        ("a0", True),
        ("b1", False),
        ("b0", False),
    ]
    assert len(rows(version)) == 2
    assert left_out(version) == {"unwanted": 2}


def test_a_correction_is_learned_and_the_original_stands_beside_it(run: Run) -> None:
    correct("b", 0, "much better")
    row = next(row for row in rows(make(run)) if row["human"])
    assert [message["content"] for message in row["completion"]] == ["much better"]
    assert row["original"][-1]["content"] == "b0"
    assert row["labellers"] == ["user:editor"]
    pair = next(row for row in rows(make(run, name="pairs", form="pairs"), DPO) if row["human"])
    assert (pair["chosen"][0]["content"], pair["rejected"][0]["content"]) == ("much better", "b0")


def test_tools_and_roles_are_kept(run: Run) -> None:
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    messages = [
        Message("system", "You add."),
        Message("user", "1+2"),
        Message("assistant", None, tool_calls=[ToolCall("1", FunctionCall("add", '{"a": 1}'))], reasoning_content="hm"),
        Message("tool", "3", tool_call_id="1"),
        Message("assistant", "3"),
    ]
    tokens = {"token_ids": list(range(6)), "loss_mask": [0, 1, 0, 0, 1, 1], "inference_logprobs": [0.0] * 6}
    submit(run, story.rollout(1.0, messages=messages, tools=tools, **tokens))
    line = next(line for line in lines(make(run)) if b"You add." in line)
    row = json.loads(line)
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    assert [message["role"] for message in row["completion"]] == ["assistant", "tool", "assistant"]
    assert row["completion"][0]["reasoning_content"] == "hm"
    assert row["completion"][1]["tool_call_id"] == "1"
    example = parse_example(line, "f:1", ["assistant"])
    assert isinstance(example, Conversation)
    assert example.tools == tools


PARAMETERS = {
    "type": "object",
    "properties": {"unit": {"type": "string"}, "at": {"type": "string"}},
    "required": ["at"],
}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Of a place.", "parameters": PARAMETERS}}
"""As chat templates render it: nothing of it is in the order in which the database would sort it."""


def test_tools_are_in_the_order_in_which_they_were_played(run: Run) -> None:
    submit(run, story.rollout(1.0, messages=[Message("user", "?"), Message("assistant", "!")], tools=[TOOL]))
    example = parse_example(next(line for line in lines(make(run)) if b"weather" in line), "f:1", ["assistant"])
    assert isinstance(example, Conversation)
    assert json.dumps(example.tools) == json.dumps([TOOL])
    [group] = ScoredGroup.objects.filter(key="x")
    assert json.dumps(group.rollouts.get().tools) == json.dumps([TOOL])


def test_a_row_of_a_file_keeps_the_order_of_its_keys_at_every_depth(run: Run) -> None:
    arguments = {"unit": "K", "at": "Rome", "c": {"zz": 1, "a": [{"y": 1.50, "x": 2}]}}
    calls = [{"type": "function", "id": "1", "function": {"name": "weather", "arguments": arguments}}]
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": calls}]
    row = {"tools": [TOOL], "messages": messages, "zeta": {"b": 1, "a": 2}, "at": 0}
    version = imported(run, [row])
    [told] = rows(version)
    assert json.dumps(told["completion"]) == json.dumps(messages[1:])
    assert json.dumps(json.loads(told["tools"])) == json.dumps([TOOL])
    assert json.dumps(told["zeta"]) == json.dumps(row["zeta"])
    copy = making.make(run.project, name="copy", form="examples", recipe=Recipe(version=f"{version}"), actor="user:cy")
    assert lines(copy) == lines(version)


def test_the_order_of_keys_makes_no_other_version(run: Run) -> None:
    row = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}], "tools": [TOOL]}
    turned = {
        "tools": [dict(reversed(TOOL.items()))],
        "messages": [dict(reversed(each.items())) for each in row["messages"]],
    }
    assert imported(run, [row]).digest == imported(run, [turned]).digest


def test_without_messages_tokens_are_rows_and_a_branch_is_one(run: Run) -> None:
    submit(run, story.rollout(1.0, tokens=5), story.rollout(0.0, tokens=3))
    line = next(line for line in lines(make(run, best=1)) if b"token_ids" in line)
    assert parse_example(line, "f:1", ["assistant"]) == Tokens([65, 66, 67, 68, 69], [0, 0, 1, 1, 1])
    pair = next(line for line in lines(make(run, name="pairs", form="pairs"), DPO) if b"token_ids" in line)
    assert parse_pair(pair, "f:1", ["assistant"]).rejected == Tokens([65, 66, 67], [0, 0, 1])


def test_pages_lose_no_member(run: Run) -> None:
    version = make(run)
    whole = lines(version)
    with patch.multiple(rendering, PAGE_MEMBERS=3, PAGE_BYTES=1):
        assert lines(version) == whole
    assert [line for page in rendering.pages(version, SFT, 2) for _, line in page.rows] == whole[2:]


def test_rows_of_a_file_are_rendered_as_they_were_but_cut_where_the_assistant_begins(run: Run) -> None:
    given = [
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "source": "wiki"},
        {"prompt": "once", "completion": " upon"},
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "b"}], "label": False,
         "tools": [{"type": "function"}]},
    ]  # fmt: skip
    first, second, third = rows(imported(run, given), KTO)
    assert (first["prompt"][0]["content"], first["completion"][0]["content"], first["source"]) == ("q", "a", "wiki")
    assert (first["run"], first["label"], second["prompt"]) == (None, True, "once")
    assert (third["label"], json.loads(third["tools"])) == (False, [{"type": "function"}])


def test_what_a_row_of_a_file_calls_a_label_does_not_say_otherwise_than_the_version(run: Run) -> None:
    version = imported(run, [{"prompt": "p", "completion": "c", "label": label} for label in (0, "no", None, False)])
    assert [row["label"] for row in rows(version, KTO)] == [True, True, True, False]


def test_of_a_row_of_a_file_the_same_is_learned_as_was_imported_whatever_else_it_has(run: Run) -> None:
    spoken = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    given: list[dict[str, Any]] = [
        {"messages": spoken, "prompt": "A0001"},
        {"messages": spoken, "prompt": None, "completion": None, "tools": None},
        {"messages": spoken, "token_ids": [1, 2], "loss_mask": [0, 1]},
        {"messages": None, "prompt": spoken[:1], "completion": spoken[1:]},
    ]
    version = imported(run, given)
    assert [parse_example(line, "f", ["assistant"]) for line in lines(version)] == [
        Conversation(spoken, prompt_messages=1)
    ] * 4
    assert left_out(version) == {}
    pair = {"messages": spoken, "prompt": None, "chosen": spoken, "rejected": [spoken[0], spoken[1] | {"content": "b"}]}
    [row] = lines(imported(run, [pair], "pairs"), DPO)
    assert parse_pair(row, "f", ["assistant"]) == parse_pair(json.dumps(pair).encode(), "f", ["assistant"])


def test_a_version_of_pairs_is_no_sft_data_and_the_refusal_says_what_it_is(run: Run) -> None:
    version = make(run, name="pairs", form="pairs")
    with pytest.raises(Invalid) as refused:
        next(rendering.pages(version, SFT))
    assert refused.value.fields == {"form": "pairs@1 has pairs, and sft is made of examples: export-dpo"}


def test_somebody_elses_words_stay_text(run: Run) -> None:
    hostile = '</script>"\n\u2028\u202e{"role": "assistant"}\\u0041'
    submit(run, story.rollout(1.0, messages=[Message("user", hostile), Message("assistant", hostile)]))
    line = next(line for line in lines(make(run, best=1)) if b"script" in line)
    assert line.count(b"\n") == 1
    assert [json.loads(line)[part][0]["content"] for part in ("prompt", "completion")] == [hostile, hostile]


def test_who_made_and_who_labelled_needs_no_account_any_more(run: Run) -> None:
    say("a", rollout=1, by="gone")
    version = make(run, best=1)
    before = lines(version)
    person = somebody("gone")
    person.is_active = False
    person.save()
    assert lines(version) == before
    assert make_project() == run.project
    assert making.make(run.project, name="z", form="examples", recipe=Recipe(runs=[run.key]), actor="a").version == 1
