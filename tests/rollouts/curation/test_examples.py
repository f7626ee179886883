"""The best rollouts of a run as examples and pairs: the right ones, in forms that an SFT run takes."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from environments.figures import REPLIES
from environments.types import FunctionCall, Message, PlayedGroup, PlayedRollout, Span, SpanKind, StopReason, ToolCall
from rollouts.models import Run, ScoredGroup
from rollouts.services.curation import examples, exchange, labels
from rollouts.services.curation.examples import Selection
from rollouts.states import GroupState
from tests import store
from tests.factories import make_user
from tests.rollouts import story
from tests.rollouts.curation.test_exchange import launch
from tests.trainers.control_plane import FakeControlPlane, serving
from tests.trainers.support import rl_config, run_trainer
from trainers.data.examples import Conversation, Tokens, parse_example, parse_pair
from trainers.model.tiny import write_tiny_model

pytestmark = pytest.mark.django_db

PROMPT = Message("user", "abc")


@pytest.fixture
def run() -> Run:
    return launch()


def said(text: str, reward: float | None, **fields: Any) -> PlayedRollout:
    """A rollout in which the policy answered `text`."""
    return story.rollout(reward, messages=[PROMPT, Message("assistant", text)], tokens=4 + len(text), **fields)


def submit(run: Run, *groups: Sequence[PlayedRollout]) -> None:
    scored = [
        PlayedGroup(
            key=f"g{number}",
            environment="reverse_text",
            environment_version="7",
            problem_key=f"p{number}",
            rollouts=list(rollouts),
        )
        for number, rollouts in enumerate(groups)
    ]
    story.submit(run, scored, actor="token:t")


def answers(run: Run, selection: Selection | None = None, **options: Any) -> list[str]:
    lines = examples.export_examples(run, selection or Selection(), **options)
    return [json.loads(line)["messages"][-1]["content"] for line in lines]


def pairs(run: Run, selection: Selection | None = None) -> list[dict[str, Any]]:
    return [json.loads(line) for line in examples.export_pairs(run, selection or Selection())]


def test_the_best_of_each_group_is_exported_with_where_it_is_from(run: Run) -> None:
    submit(run, [said("cb", 0.5), said("cba\n\u2028é", 1.0)], [said("x", 0.2), said("y", 0.2)])
    first, second = (json.loads(line) for line in examples.export_examples(run, Selection()))
    assert first == {
        "messages": [{"role": "user", "content": "abc"}, {"role": "assistant", "content": "cba\n\u2028é"}],
        "run": run.key,
        "group": "g0",
        "environment": "reverse_text",
        "environment_version": "7",
        "problem_key": "p0",
        "rollout": 1,
        "reward": 1.0,
    }
    assert (second["rollout"], second["group"]) == (0, "g1")


def test_what_somebody_rejects_is_not_learned_from_until_they_take_it_back(run: Run) -> None:
    submit(run, [said("a", 0.9), said("b", 0.5)], [said("c", 1.0), said("d", 0.0)])
    user = make_user("cy")
    first, second = ScoredGroup.objects.filter(run=run).order_by("key")

    def say(group: ScoredGroup, verdict: str, **of: Any) -> None:
        labels.say(group, user=user, actor="user:cy", verdict=verdict, **of)

    say(first, "reject", rollout=0)
    say(second, "reject")
    assert answers(run, Selection(best=None)) == ["b"]
    assert pairs(run) == []
    say(first, "accept", rollout=0)
    say(second, "withdrawn")
    assert answers(run) == ["a", "c"]


def test_a_rejected_rollout_is_not_chosen_of_a_pair_and_may_be_the_worse_one(run: Run) -> None:
    submit(run, [said("a", 0.9), said("b", 0.7), said("c", 0.1)], [said("d", 1.0), said("e", 0.0)])
    first, second = ScoredGroup.objects.filter(run=run).order_by("key")
    user = make_user("cy")
    for group, rollout in ((first, 0), (first, 2), (second, 1)):
        labels.say(group, user=user, actor="user:cy", verdict="reject", rollout=rollout)
    ends = [[pair[name][-1]["content"] for name in ("chosen", "rejected")] for pair in pairs(run)]
    assert ends == [["b", "c"], ["d", "e"]]
    assert answers(run, Selection(best=None)) == ["b", "d"]
    labels.say(second, user=user, actor="user:cy", verdict="reject")
    assert len(pairs(run)) == 1


def test_rewards_numbers_and_truncation_select(run: Run) -> None:
    cut = {"stop_reason": StopReason.LENGTH}
    submit(run, [said("a", 0.9), said("b", 1.0, **cut), said("c", 0.5), said("d", None)], [said("e", 0.1)])
    assert answers(run) == ["a", "e"]
    assert answers(run, Selection(min_reward=0.5)) == ["a"]
    assert answers(run, Selection(best=2)) == ["a", "c", "e"]
    assert answers(run, Selection(best=None, truncated=True)) == ["b", "a", "c", "e"]


def test_states_and_environments_select_and_what_a_person_rejected_stays_out(run: Run) -> None:
    submit(run, [said("a", 1.0)], [said("b", 1.0)], [said("c", 1.0)])
    ScoredGroup.objects.filter(key="g1").update(state=GroupState.REJECTED, withheld="rejected")
    ScoredGroup.objects.filter(key="g2").update(state=GroupState.STALE)
    assert answers(run) == ["a", "c"]
    assert answers(run, states=["rejected", "stale"]) == ["b", "c"]
    assert answers(run, environment="elsewhere") == []


def test_pages_hold_few_tokens_and_lose_no_group(run: Run) -> None:
    submit(run, *([said(str(number), 1.0)] for number in range(7)))
    with patch.multiple(exchange, PAGE_IDS=3, PAGE_TOKENS=11):
        assert answers(run) == [str(number) for number in range(7)]


def test_a_pair_is_the_best_beside_the_worst(run: Run) -> None:
    cut = {"stop_reason": StopReason.LENGTH}
    submit(
        run,
        [said("b", 0.5), said("c", 0.0, **cut), said("a", 1.0)],
        [said("same reward", 1.0), said("other", 1.0)],
        [said("same", 1.0), said("same", 0.0)],
    )
    [first] = pairs(run)
    assert [first[name][-1]["content"] for name in ("chosen", "rejected")] == ["a", "c"]
    assert (first["chosen_reward"], first["rejected_reward"], first["group"]) == (1.0, 0.0, "g0")


def test_a_pair_needs_a_gap_and_a_good_answer(run: Run) -> None:
    submit(run, [said("a", 0.6), said("b", 0.5)], [said("c", 0.9), said("d", 0.1)])
    assert len(pairs(run)) == 2
    assert [pair["group"] for pair in pairs(run, Selection(min_gap=0.2))] == ["g1"]
    assert [pair["group"] for pair in pairs(run, Selection(min_reward=0.7))] == ["g1"]


def test_without_messages_the_tokens_themselves_are_exported(run: Run) -> None:
    submit(run, [story.rollout(1.0, tokens=5), story.rollout(0.0, tokens=3)])
    [example] = examples.export_examples(run, Selection())
    assert parse_example(example, "f:1", ["assistant"]) == Tokens([65, 66, 67, 68, 69], [0, 0, 1, 1, 1])
    [pair] = examples.export_pairs(run, Selection())
    parsed = parse_pair(pair, "f:1", ["assistant"])
    assert parsed.chosen == Tokens([65, 66, 67, 68, 69], [0, 0, 1, 1, 1])
    assert parsed.rejected == Tokens([65, 66, 67], [0, 0, 1])


def test_what_is_exported_is_what_an_sft_run_takes(run: Run) -> None:
    submit(run, [said("a", 1.0), said("b", 0.0)])
    [example] = examples.export_examples(run, Selection())
    [pair] = examples.export_pairs(run, Selection())
    messages = [{"role": "user", "content": "abc"}, {"role": "assistant", "content": "a"}]
    assert parse_example(example, "f:1", ["assistant"]) == Conversation(messages)
    assert parse_pair(pair, "f:1", ["assistant"]).chosen == Conversation(messages, None, prompt_messages=1)


@pytest.mark.slow
@pytest.mark.parametrize("prefers", [False, True])
def test_a_trainer_learns_from_what_is_exported(run: Run, tmp_path: Path, prefers: bool) -> None:
    groups = [[said(word * 2, 1.0), said("?", 0.0)] for word in ("ab", "cd", "ef", "gh", "ij")]
    submit(run, *groups, [story.rollout(1.0, tokens=9), story.rollout(0.5, tokens=7)])
    export = examples.export_pairs if prefers else examples.export_examples
    path = tmp_path / "exported.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(export(run, Selection()))))
    write_tiny_model(tmp_path / "model")
    data = {"path": str(path), "batch_size": 6, "preference": {"beta": 0.3} if prefers else None}
    config = rl_config(tmp_path / "model", kind="sft", data=data, max_steps=4, optimizer__lr=3e-3)
    plane = FakeControlPlane(config, tmp_path / "run")
    with serving(plane) as url:
        assert run_trainer("sft", url) == 0
    losses = [plane.acks[step].metrics["loss/mean"] for step in range(4)]
    assert losses[3] < losses[0] - 0.2
    assert plane.acks[0].metrics["batch/sequences"] == (12 if prefers else 6)
    assert list(plane.versions) == [4]


def test_a_line_has_the_calls_of_its_messages_and_the_tools_beside_them(run: Run) -> None:
    call = ToolCall("call_1", FunctionCall("add", '{"a": 1}'))
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    messages = [
        PROMPT,
        Message("assistant", tool_calls=[call]),
        Message("tool", "3", tool_call_id="call_1"),
        Message("assistant", "3"),
    ]
    submit(
        run, [story.rollout(1.0, messages=messages, tools=tools), story.rollout(0.0, messages=messages, tools=tools)]
    )
    [line] = examples.export_examples(run, Selection())
    example = parse_example(line, "f:1", ["assistant"])
    assert isinstance(example, Conversation)
    assert example.tools == tools
    assert example.messages[1]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}
    assert example.messages[2]["tool_call_id"] == "call_1"


def test_the_tools_of_a_line_are_in_the_order_in_which_they_were_played(run: Run) -> None:
    parameters = {"type": "object", "properties": {"long name": {}, "b": {}}, "required": ["b"]}
    tools = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": parameters}}]
    told = [PROMPT, Message("assistant", "3")]
    submit(run, [story.rollout(1.0, messages=told, tools=tools), story.rollout(0.0, messages=told, tools=tools)])
    [line] = examples.export_examples(run, Selection())
    assert json.dumps(json.loads(line)["tools"]) == json.dumps(tools)


def test_nothing_that_a_sender_says_makes_an_example_of_what_was_never_sampled(run: Run) -> None:
    """A seat that was never asked leaves no token, and may have words of the problem's own assistant."""
    words = [PROMPT, Message("assistant", "shown as an example")]
    forged = {"endpoint/completion_tokens": 5.0}
    never_asked = PlayedRollout(
        token_ids=[], loss_mask=[], inference_logprobs=[], seat="b", reward=1.0, messages=words, metrics=forged
    )
    submit(run, [said("yes", 1.0, seat="a"), never_asked])
    assert answers(run) == ["yes"]


TOKENLESS = ["failed"]
"""What becomes of a group without a token that is submitted; an evaluation's is evaluated."""


def spoken(
    reward: float, *said: tuple[str, str], asked: int = 1, metrics: dict[str, float] | None = None
) -> PlayedRollout:
    """What an endpoint's session leaves: no token, and a span for each of its waits."""
    return PlayedRollout(
        token_ids=[],
        loss_mask=[],
        inference_logprobs=[],
        seat="a",
        reward=reward,
        messages=[Message(role, text) for role, text in said],  # type: ignore[arg-type]
        spans=[Span(SpanKind.MODEL, float(at), 0.5) for at in range(asked)],
        metrics=metrics or {},
    )


@pytest.fixture
def endpoint_run(run: Run) -> Run:
    """A run that an endpoint plays."""
    with store.beyond_rights():
        Run.objects.filter(pk=run.pk).update(config=run.config | {"model": {"path": "", "endpoint": "teacher"}})
    return story.fresh(run)


def test_two_of_an_endpoints_that_say_the_same_make_no_pair(endpoint_run: Run) -> None:
    same = [("user", "abc"), ("assistant", "cba")]
    submit(endpoint_run, [spoken(1.0, *same), spoken(0.0, *same)])
    assert list(examples.export_pairs(endpoint_run, Selection(), states=TOKENLESS)) == []


def test_what_an_environment_wrote_in_place_of_an_endpoints_words_is_not_learned(endpoint_run: Run) -> None:
    told = [("user", "abc"), ("assistant", "written anew"), ("user", "and?"), ("assistant", "cba")]
    submit(endpoint_run, [spoken(1.0, *told, asked=2, metrics={REPLIES: 1.0})], [spoken(1.0, *told, asked=2)])
    edited, whole = (json.loads(line) for line in examples.export_examples(endpoint_run, Selection(), states=TOKENLESS))
    assert [message["content"] for message in edited["prompt"]] == ["abc", "written anew", "and?"]
    assert [message["content"] for message in edited["completion"]] == ["cba"]
    assert [message["content"] for message in whole["messages"]] == [text for _, text in told]


@pytest.mark.parametrize("forged", [9.0, -1e30, 1e30])
def test_no_metric_makes_more_of_a_rollout_than_was_asked(endpoint_run: Run, forged: float) -> None:
    told = [("user", "abc"), ("assistant", "shown"), ("user", "and?"), ("assistant", "cba")]
    submit(endpoint_run, [spoken(1.0, *told, metrics={REPLIES: forged})])
    lines = examples.export_examples(endpoint_run, Selection(), states=TOKENLESS)
    learned = [[message["content"] for message in json.loads(line)["completion"]] for line in lines]
    assert learned == ([["cba"]] if forged > 0 else [])
