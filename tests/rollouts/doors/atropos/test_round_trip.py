"""An item comes back as it was sent, whatever it holds; floats have 32 bits."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollouts.formats.arrays import PackedGroup
from rollouts.formats.atropos import numbers
from rollouts.formats.atropos.encoding import ReadRollout, written_item
from rollouts.formats.atropos.groups import pack_item
from rollouts.formats.atropos.items import KEYS, decode_many, decode_one
from rollouts.formats.json_arrays import encode
from rollouts.models import GroupTokens, Rollout
from rollouts.storable import data_faults
from tests.lanes import amount
from tests.rollouts.doors.atropos.api import Api, JsonObject, item

JSON = "application/json"


def given_back(sent: JsonObject) -> JsonObject:
    """What becomes of an item between its body and an answer, without a database between."""
    group = pack_item(decode_one(json.dumps(sent).encode()), "environment")
    arrays = group.arrays
    rows: list[Any] = [
        None if column is None else column.tobytes()
        for column in (
            arrays.lengths,
            arrays.token_ids,
            arrays.loss_mask,
            arrays.inference_logprobs,
            arrays.ref_logprobs,
            arrays.advantages,
            arrays.branch_lengths,
        )
    ]
    rollouts = [ReadRollout(each.reward, stored_text(each.messages)) for each in group.rollouts]
    answer = written_item(*rows, group.extras, rollouts=rollouts)
    content: JsonObject = json.loads(encode(answer))
    assert tuple(content) == KEYS
    return content


def stored_text(messages: Any) -> str:
    """As the database has them; it holds neither NUL nor lone surrogates."""
    text = json.dumps(messages)
    assert not list(data_faults(json.loads(text)))
    return text


def as_float32(rows: Any) -> Any:
    return None if rows is None else [np.asarray(row, np.float32).tolist() for row in rows]


def same(sent: JsonObject, back: JsonObject) -> None:
    expected = dict.fromkeys(KEYS) | sent
    for key in ("advantages", "ref_logprobs", "inference_logprobs"):
        if back[key] != expected[key]:
            expected[key], back[key] = as_float32(expected[key]), as_float32(back[key])
    if back["distill_logprobs"] != expected["distill_logprobs"] and expected["distill_logprobs"] is not None:
        for each in (expected, back):
            each["distill_logprobs"] = [as_float32(row) for row in each["distill_logprobs"]]
    assert back == expected


finite = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-1e6, max_value=1e6)
logprobs = st.floats(-20, 0, width=32) | st.just(1.0)
text = st.text(max_size=6) | st.sampled_from(["\0", "\ud800", "a\ud800b", "\udfff\ud800", "{", "['"])
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(text, plain, max_size=3)


message = st.builds(
    lambda own, more: {**more, **own}, st.fixed_dictionaries({"role": plain, "content": plain}), objects
)


@st.composite
def items(draw: st.DrawFn) -> JsonObject:
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    count = len(lengths)

    def rows(of: st.SearchStrategy[Any]) -> st.SearchStrategy[list[list[Any]]]:
        return st.tuples(*(st.lists(of, min_size=length, max_size=length) for length in lengths)).map(list)

    def labels(flags: list[list[bool]]) -> list[list[int]]:
        return [
            [token if flag else -100 for token, flag in zip(*pair, strict=True)]
            for pair in zip(tokens, flags, strict=True)
        ]

    tokens = draw(rows(st.integers(0, 2**31 - 1) | st.integers(0, 2)))
    masks = rows(st.booleans()).map(labels) | rows(st.integers(0, 1)) | rows(st.integers(-(2**31), 2**31 - 1))
    ragged = st.lists(st.lists(finite, max_size=4), min_size=count, max_size=count)
    optional: dict[str, st.SearchStrategy[Any]] = {
        "advantages": rows(finite) | ragged,
        "ref_logprobs": rows(logprobs) | ragged,
        "inference_logprobs": rows(logprobs) | st.just([]),
        "messages": st.lists(st.lists(message, max_size=2), max_size=4),
        "generation_params": objects,
        "overrides": st.lists(objects, max_size=3),
        "group_overrides": objects,
        "images": plain,
        "env_id": st.integers(-3, 3),
        "distill_token_ids": st.lists(st.lists(st.lists(st.integers(0, 9), max_size=2), max_size=2), max_size=2),
        "distill_logprobs": rows(st.lists(finite, min_size=2, max_size=2)),
    }
    values = {
        key: draw(optional[key] | st.none()) for key in draw(st.sets(st.sampled_from(sorted(optional)), max_size=5))
    }
    scores = draw(st.lists(finite, min_size=count, max_size=count))
    return {"tokens": tokens, "masks": draw(masks), "scores": scores, **values}


@pytest.mark.slow
@settings(max_examples=amount(150, 3000), deadline=None)
@given(items())
def test_an_item_comes_back_as_it_was_sent(sent: JsonObject) -> None:
    same(sent, given_back(sent))


@pytest.mark.slow
@settings(max_examples=amount(60, 1500), deadline=None)
@given(items())
def test_every_way_to_parse_an_item_makes_the_same_group(sent: JsonObject) -> None:
    quick, listed = json.dumps(sent).encode(), json.dumps([sent]).encode()
    lax = json.dumps({**sent, "env_id": None if sent.get("env_id") is None else float(sent["env_id"])}).encode()
    groups = [pack_item(decode_one(body), "e") for body in (quick, lax)]
    groups.append(pack_item(decode_many(listed)[0], "e"))
    for group in groups[1:]:
        assert described(group) == described(groups[0])


def described(group: PackedGroup) -> list[Any]:
    arrays = group.arrays
    columns = (arrays.lengths, arrays.token_ids, arrays.loss_mask, arrays.inference_logprobs, arrays.ref_logprobs)
    return [
        group.problem_key,
        [(each.reward, each.messages) for each in group.rollouts],
        *(None if column is None else (column.dtype, column.tobytes()) for column in (*columns, arrays.advantages)),
    ]


SHORT = [-0.7, -1e-07, 0.1, -3.4e38, 1.0, -123456.7, -2.3509887e-38]
"""The shortest decimals of float32 numbers, which as float64 take up to nine digits more."""


@pytest.mark.parametrize("key", ["inference_logprobs", "ref_logprobs", "advantages"])
def test_numbers_come_back_with_the_digits_that_were_sent(key: str) -> None:
    numbers = [[-0.7, -0.25, -1e-07], [-2.5e-05, -123456.7, -2.3509887e-38]]
    assert given_back(item(**{key: numbers}))[key] == numbers
    assert given_back(item(distill_logprobs=[[SHORT, SHORT]] * 2))["distill_logprobs"] == [[SHORT, SHORT]] * 2


def test_advantages_that_overrides_set_to_zero_come_back_as_they_were_sent() -> None:
    sent = item(advantages=[[0.7, -0.1, 1e-07]] * 2, overrides=[{"set_advantage_to_zero": True}, {}])
    assert given_back(sent)["advantages"] == sent["advantages"]
    advantages = pack_item(decode_one(json.dumps(sent).encode()), "e").arrays.advantages
    assert advantages is not None
    assert advantages.tolist() == [0.0, 0.0, 0.0, *np.array(sent["advantages"][1], "<f4").tolist()]


def test_a_plain_item_is_parsed_to_memory() -> None:
    sent = item(inference_logprobs=[[1.0, -0.5, -0.25]] * 2, messages=None, generation_params={"n": [1]}, env_id=0)
    assert numbers.parse(json.dumps(sent).encode()) is not None


@pytest.mark.parametrize(
    "values",
    [
        {"tokens": [[1, 2, True], [1, 2, 3]]},
        {"tokens": [[1, 2, 3.0], [1, 2, 3]]},
        {"tokens": [[1, 2, [3]], [1, 2, 3]]},
        {"tokens": [{"a": 1, "b": 2, "c": 3}, [1, 2, 3]]},
        {"masks": [[1, 2, None], [1, 2, 3]]},
        {"scores": ["1", 2]},
        {"env_id": "1"},
        {"generation_params": []},
    ],
)
def test_what_is_not_plainly_right_is_left_to_the_decoders_that_say_why(values: JsonObject) -> None:
    assert numbers.parse(json.dumps(item(**values)).encode()) is None


def stored(**values: Any) -> tuple[GroupTokens, list[Rollout]]:
    Api().submit(**values)
    return GroupTokens.objects.get(), list(Rollout.objects.order_by("index"))


def view(data: Any, dtype: str) -> list[float]:
    values: list[float] = np.frombuffer(data, dtype).tolist()
    return values


@pytest.mark.django_db(transaction=True)
def test_the_columns_hold_what_our_own_trainers_expect() -> None:
    tokens, rollouts = stored(
        tokens=[[5, 6, 7], [5, 8]],
        masks=[[-100, 6, 7], [-100, -100]],
        scores=[0.25, 1],
        inference_logprobs=[[1.0, -0.5, -0.25], [1.0, 1.0]],
        ref_logprobs=[[1.0, -0.75, -0.5], [1.0, 1.0]],
        advantages=[[0.0, 0.5, 0.5], [0.0, -0.5]],
    )
    assert view(tokens.lengths, "<u4") == [3, 2]
    assert view(tokens.token_ids, "<u4") == [5, 6, 7, 5, 8]
    assert view(tokens.loss_mask, "u1") == [0, 1, 1, 0, 0]
    assert view(tokens.inference_logprobs, "<f4") == [0.0, -0.5, -0.25, 0.0, 0.0]
    assert view(tokens.ref_logprobs, "<f4") == [0.0, -0.75, -0.5, 0.0, 0.0]
    assert view(tokens.advantages, "<f4") == [0.0, 0.5, 0.5, 0.0, -0.5]
    assert [(row.reward, row.token_count, row.trained_token_count) for row in rollouts] == [(0.25, 3, 2), (1.0, 2, 0)]


@pytest.mark.django_db(transaction=True)
def test_a_mask_of_zeros_and_ones_trains_the_ones() -> None:
    tokens, _ = stored(masks=[[0, 1, 1], [0, 0, 1]])
    assert view(tokens.loss_mask, "u1") == [0, 1, 1, 0, 0, 1]


@pytest.mark.django_db(transaction=True)
def test_logprobs_above_zero_are_kept_for_the_sender_and_not_for_the_loss() -> None:
    api = Api()
    sent = item(inference_logprobs=[[1.0, 0.75, -0.25], [1.0, -0.5, 2.0]])
    api.post("/scored_data", sent)
    assert view(GroupTokens.objects.get().inference_logprobs, "<f4") == [0.0, 0.0, -0.25, 0.0, -0.5, 0.0]
    assert api.get("/latest_example")["inference_logprobs"] == sent["inference_logprobs"]


@pytest.mark.django_db(transaction=True)
def test_messages_are_readable_and_come_back_exactly() -> None:
    sent = [
        [
            {"role": "system", "content": "Be brief.\0"},
            {"role": "user", "content": [{"type": "text", "text": "Look:"}, {"type": "image_url", "image_url": "x"}]},
            {"role": "assistant", "content": None, "tool_calls": [{"id": 2**70, "weight": 1e300}], "reward": None},
        ],
        [{"role": "critic", "content": {"score": 1}, "lone": "\ud800"}],
    ]
    api = Api()
    response = api.request(
        "POST", "/scored_data", content=json.dumps(item(messages=sent)), headers={"content-type": JSON}
    )
    assert response.status_code == 200
    assert json.loads(api.request("GET", "/latest_example").content)["messages"] == sent
    shown = [row.messages for row in Rollout.objects.order_by("index")]
    assert [[(each["role"], each["content"]) for each in row] for row in shown] == [
        [
            ("system", "Be brief.\ufffd"),
            ("user", 'Look:\n{"type": "image_url", "image_url": "x"}'),
            ("assistant", ""),
        ],
        [("critic", '{"score": 1}')],
    ]
    assert shown[0][2]["tool_calls"] == [{"id": str(2**70), "weight": "1e+300"}]


@pytest.mark.django_db(transaction=True)
def test_arguments_that_are_an_object_are_stored_as_text_in_their_order() -> None:
    arguments = {"unit": "K", "at": {"street": 1, "b": 2}}
    calls = [{"id": "1", "type": "function", "function": {"name": "weather", "arguments": arguments}}]
    said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": calls}]
    api = Api()
    api.submit(messages=[said, said])
    assert json.dumps(api.get("/latest_example")["messages"]) == json.dumps([said, said])
    [function] = [each["function"] for each in Rollout.objects.earliest("index").messages[1]["tool_calls"]]
    assert function == {"name": "weather", "arguments": json.dumps(arguments)}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("messages", [[], [[]], [[{"role": "user", "content": "a"}]] * 3])
def test_messages_of_another_number_of_rollouts_are_kept(messages: Any) -> None:
    api = Api()
    api.submit(messages=messages)
    assert api.get("/latest_example")["messages"] == messages
    assert [row.messages for row in Rollout.objects.all()] == [[], []]


def test_the_same_prompt_is_the_same_problem_whatever_was_sampled() -> None:
    def key(*rows: list[int], prompt: int) -> str:
        masks = [[-100] * prompt + row[prompt:] for row in rows]
        sent = item(tokens=list(rows), masks=masks, scores=[0.0] * len(rows))
        return pack_item(decode_one(json.dumps(sent).encode()), "e").problem_key

    first = key([1, 2, 3, 4], [1, 2, 3, 5], prompt=2)
    assert first == key([1, 2, 9], [1, 2, 3, 3], [1, 2, 3, 3], prompt=2)
    assert first.startswith("prefix-")
    assert first != key([1, 3, 3, 4], [1, 3, 3, 5], prompt=2)
    assert first == key([1, 2, 7], [1, 2, 8], prompt=2), "and not of what all samples begin with"
    assert key([1, 2], [2, 1], prompt=1) == "no common prefix"
