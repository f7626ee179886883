"""Bad bodies: each is answered with a problem that says why, and leaves no row. Every past bug adds one."""

import json
from typing import Any

import msgspec
import pytest

from environments.client.group_client import pack
from environments.types import Message
from rollouts.models import Rollout, Run, Scope, ScoredGroup
from tests.factories import make_run
from tests.rollouts import story
from tests.rollouts.api import Api, make_token, problem, row_counts
from trainers.wire import MSGPACK

pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> Run:
    return make_run()


@pytest.fixture
def api() -> Api:
    return Api(make_token())


def good(**rollout: Any) -> dict[str, Any]:
    """A good group as JSON data, the first rollout of which is changed."""
    group: dict[str, Any] = msgspec.to_builtins(story.scored("mine"))
    group["rollouts"][0] |= rollout
    return group


def raw(**literals: str) -> bytes:
    """A group of which values of the first rollout are literal JSON text, which no encoder would write."""
    text = json.dumps(good(**{name: f"@{name}@" for name in literals}))
    for name, literal in literals.items():
        text = text.replace(f'"@{name}@"', literal)
    return text.encode()


def deep(opening: str, closing: str, levels: int = 100_000) -> bytes:
    return (opening * levels + closing * levels).encode()


def call(**function: Any) -> dict[str, Any]:
    """A call of a tool, as JSON data."""
    return {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'} | function}


def said(**fields: Any) -> dict[str, Any]:
    """A message of the policy, as JSON data."""
    return {"role": "assistant", "content": "x"} | fields


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


UNFIT: dict[str, Any] = {
    "a version of 101 characters": good() | {"environment_version": "v" * 101},
    "a version with a NUL": good() | {"environment_version": "1\0"},
    "a version that is a number": good() | {"environment_version": 1},
    "no group": [],
    "not an object": 7,
    "null": None,
    "no rollouts": good() | {"rollouts": []},
    "rollouts missing": {"environment": "e", "problem_key": "p"},
    "100,000 rollouts": good() | {"rollouts": [{"token_ids": [], "loss_mask": [], "inference_logprobs": []}] * 100_000},
    "ragged mask": good(loss_mask=[0, 0, 1]),
    "ragged logprobs": good(inference_logprobs=[0.0] * 5),
    "one token too many": good(token_ids=[1, 2, 3, 4, 5]),
    "ids nested": good(token_ids=[[1, 2], [3]]),
    "ids as text": good(token_ids="1234"),
    "id as text": good(token_ids=["1", 2, 3, 4]),
    "id as float": good(token_ids=[1.5, 2, 3, 4]),
    "id as bool": good(token_ids=[True, 2, 3, 4]),
    "id negative": good(token_ids=[-1, 2, 3, 4]),
    "id 2**31": good(token_ids=[2**31, 2, 3, 4]),
    "id 2**63": good(token_ids=[2**63, 2, 3, 4]),
    "no tokens": good(token_ids=[], loss_mask=[], inference_logprobs=[]),
    "mask 2": good(loss_mask=[0, 0, 2, 1]),
    "mask -1": good(loss_mask=[0, 0, -1, 1]),
    "mask as text": good(loss_mask=[0, 0, "1", 1]),
    "mask as bool": good(loss_mask=[False, False, True, True]),
    "logprob above zero": good(inference_logprobs=[0.0, 0.0, 0.5, -1.0]),
    "logprob beyond 32 bits": good(inference_logprobs=[0.0, 0.0, -1e39, -1.0]),
    "logprob null": good(inference_logprobs=[0.0, 0.0, None, -1.0]),
    "logprob text": good(inference_logprobs=[0.0, 0.0, "NaN", -1.0]),
    "reward text": good(reward="1"),
    "reward NaN text": good(reward="NaN"),
    "reward bool": good(reward=True),
    "reward beyond 32 bits": good(reward=3.402e38),
    "reward missing": good(reward=None),
    "reward of an error": good(stop_reason="error"),
    "stop reason": good(stop_reason="bored"),
    "error kind": good(stop_reason="error", reward=None, error={"kind": "mood", "type": "E", "message": "m"}),
    "metric beyond 32 bits": good(metrics={"a": 1e300}),
    "metric key NUL": good(metrics={"a\0": 1.0}),
    "metric key empty": good(metrics={"": 1.0}),
    "metric key long": good(metrics={"k" * 101: 1.0}),
    "metric as text": good(metrics={"a": "1"}),
    "version negative": good(first_policy_version=-1),
    "version 2**31": good(first_policy_version=2**31),
    "version not there yet": good(last_policy_version=99),
    "replica long": good(replica="r" * 101),
    "replica NUL": good(replica="r\0"),
    "seconds negative": good(generation_s=-1.0),
    "role unknown": good(messages=[{"role": "wizard", "content": "x"}]),
    "content null": good(messages=[{"role": "user", "content": None}]),
    "content of no part": good(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
    "assistant with nothing": good(messages=[{"role": "assistant"}]),
    "call without an id": good(messages=[said(tool_calls=[{"function": {"name": "f", "arguments": "{}"}}])]),
    "arguments as object": good(messages=[said(tool_calls=[call(arguments={})])]),
    "call of a user": good(messages=[said(tool_calls=[call()]) | {"role": "user"}]),
    "tools nested without end": good(tools=[nested(200)]),
    "tools with a NUL": good(tools=[{"function": {"name": "a\0"}}]),
    "tools as object": good(tools={"function": {}}),
    "unknown field": good(state="trained"),
    "environment empty": good() | {"environment": ""},
    "environment long": good() | {"environment": "e" * 101},
    "environment NUL": good() | {"environment": "e\0"},
    "problem key empty": good() | {"problem_key": ""},
    "problem key long": good() | {"problem_key": "p" * 201},
    "problem key NUL": good() | {"problem_key": "p\0"},
    "key empty": good() | {"key": ""},
    "key long": good() | {"key": "k" * 65},
    "key NUL": good() | {"key": "k\0"},
    "key twice": [good(), good()],
    "one of many": [good() | {"key": "other"}, good(loss_mask=[])],
}

MALFORMED: dict[str, bytes] = {
    "not JSON": b"hello",
    "cut off": json.dumps(good()).encode()[:-5],
    "trailing": json.dumps(good()).encode() + b" x",
    "NaN": raw(reward="NaN"),
    "Infinity": raw(reward="Infinity"),
    "-Infinity": raw(inference_logprobs="[0,0,-Infinity,-1]"),
    "lone surrogate": raw(replica='"\\ud800"'),
    "raw surrogate": raw(replica='"@"').replace(b"@", b"\xed\xa0\x80"),
    "bad UTF-8": raw(replica='"@"').replace(b"@", b"\xff\xfe"),
    "overlong UTF-8": raw(replica='"@"').replace(b"@", b"\xc0\x80"),
    "BOM": b"\xef\xbb\xbf" + json.dumps(good()).encode(),
    "UTF-16": json.dumps(good()).encode("utf-16"),
    "raw NUL": raw(replica='"@"').replace(b"@", b"\0"),
}

OUT_OF_RANGE: dict[str, bytes] = {
    "reward 1e999": raw(reward="1e999"),
    "id of 5,000 digits": raw(token_ids=f"[{'9' * 5000},2,3,4]"),
    "reward of 5,000 digits": raw(reward="9" * 5000),
    "lists in lists": deep("[", "]"),
    "objects in objects": deep('{"rollouts":', "}"),
    "lists in a rollout": raw(token_ids=deep("[", "]").decode()),
    "a million unknown keys": b"{" + b",".join(b'"k%d":0' % number for number in range(100_000)) + b"}",
}


@pytest.mark.parametrize("name", UNFIT)
def test_a_group_that_does_not_hold_together_is_refused(run: Run, api: Api, name: str) -> None:
    before = row_counts()
    body = problem(api.post(f"runs/{run.key}/groups", UNFIT[name]), 422, "invalid")
    assert row_counts() == before
    assert len(body.get("fields", {})) <= 50


@pytest.mark.parametrize("name", MALFORMED)
def test_a_body_that_is_no_json_is_refused(run: Run, api: Api, name: str) -> None:
    before = row_counts()
    problem(api.post(f"runs/{run.key}/groups", MALFORMED[name]), 400, "malformed")
    assert row_counts() == before


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_a_number_or_a_depth_beyond_reason_is_refused(run: Run, api: Api, name: str) -> None:
    before = row_counts()
    response = api.post(f"runs/{run.key}/groups", OUT_OF_RANGE[name])
    assert (response.status_code, response.json()["code"]) in {(422, "invalid"), (400, "malformed")}
    assert row_counts() == before


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x91" * 50_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        msgspec.msgpack.encode(good(reward=float("nan"))),
        msgspec.msgpack.encode(good(reward=float("inf"))),
        msgspec.msgpack.encode(good(inference_logprobs=[0.0, 0.0, float("nan"), -1.0])),
        msgspec.msgpack.encode(good(inference_logprobs=[0.0, 0.0, float("-inf"), -1.0])),
        msgspec.msgpack.encode(good(generation_s=float("nan"))),
        msgspec.msgpack.encode(good(metrics={"a": float("inf")})),
        msgspec.msgpack.encode(good(token_ids=b"\1\2\3\4")),
        msgspec.msgpack.encode(good()).replace(b"cat", b"\xff\xff\xff"),
    ],
    ids=lambda body: body[:8].hex(),
)
def test_bad_messagepack_is_refused(run: Run, api: Api, body: bytes) -> None:
    before = row_counts()
    response = api.post(f"runs/{run.key}/groups", body, content_type=MSGPACK)
    assert (response.status_code, response.json()["code"]) in {(422, "invalid"), (400, "malformed")}
    assert row_counts() == before


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "*/*"]
)
def test_a_body_of_another_type_is_refused(run: Run, api: Api, content_type: str) -> None:
    response = api.post(f"runs/{run.key}/groups", msgspec.json.encode(good()), content_type=content_type)
    assert "application/json" in problem(response, 415, "unsupported_media_type")["detail"]


def test_json_and_messagepack_store_the_same(run: Run, api: Api) -> None:
    group = good() | {"key": "json"}
    assert api.post(f"runs/{run.key}/groups", group).json() == {"stored": ["json"]}
    packed = msgspec.msgpack.encode([group | {"key": "packed"}])
    answer = api.post(f"runs/{run.key}/groups", packed, content_type=MSGPACK)
    assert (answer.status_code, answer.json()) == (201, {"stored": ["packed"]})
    columns = ["index", "reward", "token_count", "group__tokens__token_ids", "group__tokens__inference_logprobs"]
    stored = [
        [tuple(map(str, row)) for row in Rollout.objects.filter(group__key=key).order_by("index").values_list(*columns)]
        for key in ("json", "packed")
    ]
    assert stored[0] == stored[1]


def test_tools_calls_and_reasoning_are_stored_as_they_came(run: Run, api: Api) -> None:
    conversation = [
        {"role": "user", "content": [{"type": "text", "text": "1 + "}, {"type": "text", "text": "2"}]},
        {"role": "assistant", "reasoning_content": "I add.", "tool_calls": [call(), call(arguments="no {json")]},
        {"role": "tool", "content": "3", "tool_call_id": "call_1", "name": "add"},
        {"role": "assistant", "content": "3"},
    ]
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    sent = good(messages=conversation, tools=tools) | {"key": "json"}
    assert api.post(f"runs/{run.key}/groups", sent).status_code == 201
    packed = msgspec.msgpack.encode([sent | {"key": "packed"}])
    assert api.post(f"runs/{run.key}/groups", packed, content_type=MSGPACK).status_code == 201
    conversation[1]["content"] = ""
    for key in ("json", "packed"):
        first, second = Rollout.objects.filter(group__key=key).order_by("index")[:2]
        assert (first.messages, first.tools, second.tools) == (conversation, tools, None)


@pytest.mark.parametrize("value", [msgspec.msgpack.Ext(5, b"x"), {None: 1}, {(1,): 2}, {True: 3}])
def test_what_messagepack_holds_and_json_does_not_is_refused(run: Run, api: Api, value: Any) -> None:
    packed = msgspec.msgpack.encode([good(tools=[{"x": value}])])
    problem(api.post(f"runs/{run.key}/groups", packed, content_type=MSGPACK), 422, "invalid")
    launched = msgspec.msgpack.encode({"config": {"name": value}})
    problem(Api(make_token([Scope.LAUNCH])).post("runs", launched, content_type=MSGPACK), 422, "invalid")


def test_what_a_tool_call_holds_is_repaired_like_other_text(run: Run, api: Api) -> None:
    assert api.post(f"runs/{run.key}/groups", good(messages=[said(tool_calls=[call(name="a\0b")])])).status_code == 201
    assert Rollout.objects.get(index=0).messages[0]["tool_calls"] == [call(name="a\ufffdb")]


def test_hostile_text_of_a_message_is_stored_repaired_and_otherwise_as_it_came(run: Run, api: Api) -> None:
    hostile = [
        "a\0b",
        "<script>",
        "\u202egnp",
        "\x1b]8;;x\x07",
        "{{ x }}",
        "=HYPERLINK(1)",
        "👩‍👩‍👧",
        "x" * 100_000,
        "",
    ]
    messages = [msgspec.to_builtins(Message(role="assistant", content=text, name=text)) for text in hostile]
    assert api.post(f"runs/{run.key}/groups", good(messages=messages)).status_code == 201
    stored = Rollout.objects.get(index=0).messages
    assert [each["content"] for each in stored] == [text.replace("\0", "\ufffd") for text in hostile]


@pytest.mark.parametrize("number", ["-0.0", "1e-400", "1e-45", "-3.4e38", "0", "1E2"])
def test_odd_numbers_that_are_numbers_are_taken(run: Run, api: Api, number: str) -> None:
    assert api.post(f"runs/{run.key}/groups", raw(reward=number)).status_code == 201
    assert Rollout.objects.get(index=0).reward == float(number)


def test_of_a_key_that_is_there_twice_the_last_counts(run: Run, api: Api) -> None:
    body = json.dumps(good()).replace('"problem_key": "cat"', '"problem_key": "dog", "problem_key": "cat"')
    assert api.post(f"runs/{run.key}/groups", body.encode()).status_code == 201
    assert ScoredGroup.objects.get().problem_key == "cat"


def test_a_retry_of_a_submit_stores_nothing_twice(run: Run, api: Api) -> None:
    answers = [api.post(f"runs/{run.key}/groups", good()) for _ in range(3)]
    assert [(each.status_code, each.json()) for each in answers] == [(201, {"stored": ["mine"]})] * 3
    assert ScoredGroup.objects.count() == 1
    problem(api.post(f"runs/{run.key}/groups", good() | {"problem_key": "other"}), 409, "conflict")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("work/claim", {}),
        ("work/claim", {"holder": ""}),
        ("work/claim", {"holder": "h" * 101}),
        ("work/claim", {"holder": "h\0"}),
        ("work/claim", {"holder": "h", "limit": 0}),
        ("work/claim", {"holder": "h", "limit": -1}),
        ("work/claim", {"holder": "h", "limit": 257}),
        ("work/claim", {"holder": "h", "limit": 10**30}),
        ("work/claim", {"holder": "h", "lease_s": 9999}),
        ("work/renew", {}),
        ("work/renew", {"tokens": "x"}),
        ("work/renew", {"tokens": [1]}),
        ("work/settle", {}),
        ("work/settle", {"token": "x", "problem_key": "", "rollouts": []}),
        ("work/settle", {"token": "x", "problem_key": "p\0", "rollouts": []}),
        ("work/settle", {"token": "x", "problem_key": "p", "rollouts": [], "environment_version": "v" * 101}),
        ("stop", {"reason": "a\0b"}),
        ("stop", {"reason": 7}),
        ("trainer", {"hostname": "a\0b"}),
        ("trainer", {"pid": "1"}),
    ],
)
def test_other_bad_bodies_are_refused_too(run: Run, api: Api, path: str, body: Any) -> None:
    before = row_counts()
    problem(api.post(f"runs/{run.key}/{path}", body), 422, "invalid")
    assert row_counts() == before


def test_a_group_may_name_the_version_of_its_environment(api: Api, run: Run) -> None:
    scored = [story.scored(f"g{version}", environment_version=version) for version in ("1", "2")]
    assert api.post(f"runs/{run.key}/groups", scored[0]).status_code == 201
    packed = msgspec.msgpack.encode([pack(scored[1]), pack(story.scored("silent"))])
    assert api.post(f"runs/{run.key}/groups", packed, content_type=MSGPACK).status_code == 201
    stored = dict(ScoredGroup.objects.filter(run=run).values_list("key", "environment_version"))
    assert stored == {"g1": "1", "g2": "2", "silent": ""}


def test_work_is_claimed_renewed_and_settled_over_the_api(api: Api) -> None:
    run = story.launch()
    claims = api.post(f"runs/{run.key}/work/claim", {"holder": "mine", "limit": 2}).json()["claims"]
    assert [each["problem_index"] for each in claims] == [0, 1]
    tokens = [each["token"] for each in claims]
    held = api.post(f"runs/{run.key}/work/renew", {"tokens": [*tokens, "junk", "0" * 32]}).json()["held"]
    assert sorted(held) == sorted(tokens)
    rollouts = [story.rollout(1.0), story.rollout(0.0)]
    body = {"token": tokens[0], "problem_key": "cat", "rollouts": rollouts}
    versioned = body | {"environment_version": "3"}
    assert api.post(f"runs/{run.key}/work/settle", versioned).json() == {"state": "ready"}
    assert ScoredGroup.objects.get(problem_key="cat").environment_version == "3"
    problem(api.post(f"runs/{run.key}/work/settle", body), 409, "lease_lost")
    problem(api.post(f"runs/{run.key}/work/settle", body | {"token": "junk"}), 409, "lease_lost")
    short = body | {"token": tokens[1], "rollouts": rollouts[:1]}
    assert (
        "failed episodes too"
        in problem(api.post(f"runs/{run.key}/work/settle", short), 422, "invalid")["fields"]["rollouts"]
    )


def test_a_lease_of_another_run_is_not_renewed_or_settled(api: Api) -> None:
    mine, other = story.launch(), story.launch()
    [claim] = story.claim(other, 1)
    assert api.post(f"runs/{mine.key}/work/renew", {"tokens": [claim.token]}).json() == {"held": []}
    body = {"token": claim.token, "problem_key": "p", "rollouts": [story.rollout(), story.rollout()]}
    problem(api.post(f"runs/{mine.key}/work/settle", body), 409, "lease_lost")


def test_a_run_that_is_over_takes_nothing(api: Api) -> None:
    run = make_run(state="finished")
    before = row_counts()
    problem(api.post(f"runs/{run.key}/groups", good()), 410, "run_over")
    assert api.post(f"runs/{run.key}/work/claim", {"holder": "x"}).json() == {"claims": [], "reason": "over"}
    problem(api.post(f"runs/{run.key}/trainer"), 410, "run_over")
    assert row_counts() == before
