"""Bodies that are wrong: the answers of FastAPI, word for word, and never an error of ours."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollouts.errors import Invalid, Malformed
from rollouts.formats.atropos import items
from rollouts.formats.atropos.groups import pack_item
from rollouts.models import ScoredGroup
from tests.lanes import amount
from tests.rollouts.doors.atropos.api import Api, introduction, item, registration

JSON = {"content-type": "application/json"}
pytestmark = pytest.mark.django_db(transaction=True)


def faults(body: bytes | dict[str, Any], path: str = "/scored_data", status: int = 422, **headers: str) -> Any:
    """What is wrong with a body, of which nothing may have been stored."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = Api().request("POST", path, content=content, headers={**JSON, **headers})
    assert response.status_code == status, response.text
    assert not ScoredGroup.objects.exists()
    return response.json()["detail"]


def test_missing_fields_are_named_with_what_came() -> None:
    assert faults(b'{"tokens": [[1]]}') == [
        {"type": "missing", "loc": ["body", key], "msg": "Field required", "input": {"tokens": [[1]]}}
        for key in ("masks", "scores")
    ]


def test_a_list_names_the_item() -> None:
    detail = faults(json.dumps([item(), item(scores=["high", 0])]).encode(), "/scored_data_list")
    assert detail == [
        {
            "type": "float_parsing",
            "loc": ["body", 1, "scores", 0],
            "msg": "Input should be a valid number, unable to parse string as a number",
            "input": "high",
        }
    ]


@pytest.mark.parametrize(
    ("body", "position", "error"),
    [
        (b"x", 0, "Expecting value"),
        (b"{", 1, "Expecting property name enclosed in double quotes"),
        (b'{"tokens": [[1,]]}', 15, "Expecting value"),
        (b"{} x", 3, "Extra data"),
    ],
)
def test_what_is_no_json_is_told_with_its_place(body: bytes, position: int, error: str) -> None:
    assert faults(body) == [
        {
            "type": "json_invalid",
            "loc": ["body", position],
            "msg": "JSON decode error",
            "input": {},
            "ctx": {"error": error},
        }
    ]


@pytest.mark.parametrize(
    "body", [b"\xff\xfe\xff", b'{"images": "\xff"}', b"9" * 5000, b"[" * 100_000, b'{"images": ' + b"[" * 5000]
)
def test_what_python_cannot_parse_is_answered_400(body: bytes) -> None:
    assert faults(body, status=400) == "There was an error parsing the body"


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize(
    "field", ["scores", "inference_logprobs", "images", "generation_params", "messages", "unknown"]
)
def test_numbers_that_no_answer_could_hold_are_refused(field: str, literal: str) -> None:
    text = json.dumps(item(**{field: "PLACE"})).replace('"PLACE"', f'[[{{"role": {literal}, "content": 1}}]]')
    if field == "scores":
        text = text.replace(f'[[{{"role": {literal}, "content": 1}}]]', f"[{literal}, 0]")
    if field == "unknown" and literal.endswith("1e999"):
        return  # a number that is not kept does no harm
    detail = faults(text.encode())
    assert detail[0]["type"] in {"finite_number", "dict_type", "list_type", "float_type"}


@pytest.mark.parametrize(
    ("values", "loc"),
    [
        ({"tokens": []}, ["tokens"]),
        ({"tokens": [[], []], "masks": [[], []]}, ["tokens", 0]),
        ({"scores": [1.0]}, ["scores"]),
        ({"masks": [[1, 2, 3]]}, ["masks"]),
        ({"masks": [[1, 2, 3], [1, 2]]}, ["masks", 1]),
        ({"inference_logprobs": [[0.0] * 3]}, ["inference_logprobs"]),
        ({"inference_logprobs": [[0.0] * 3, [0.0] * 4]}, ["inference_logprobs", 1]),
        ({"tokens": [[1, 2, 3], [1, -2, 3]]}, ["tokens", 1, 1]),
        ({"tokens": [[1, 2, 3], [1, 2, 2**31]]}, ["tokens", 1, 2]),
        ({"tokens": [[1, 2, 3], [1, 2, 10**30]]}, ["tokens", 1, 2]),
        ({"masks": [[1, 2, 3], [1, 2, 2**31]]}, ["masks", 1, 2]),
        ({"inference_logprobs": [[0.0] * 3, [0.0, -1e39, 0.0]]}, ["inference_logprobs", 1, 1]),
        ({"advantages": [[0.0] * 3, [0.0, 1e300, 0.0]]}, ["advantages", 1, 1]),
        ({"scores": [1e39, 0.0]}, ["scores", 0]),
        ({"env_id": 2**31}, ["env_id"]),
        ({"env_id": -(10**20)}, ["env_id"]),
        ({"distill_token_ids": [[[2**40]]]}, ["distill_token_ids", 0, 0]),
    ],
)
def test_what_does_not_hold_together_is_refused_at_its_place(values: dict[str, Any], loc: list[str | int]) -> None:
    assert faults(item(**values))[0]["loc"] == ["body", *loc]
    assert faults(json.dumps([item(), item(**values)]).encode(), "/scored_data_list")[0]["loc"] == ["body", 1, *loc]


def test_a_group_has_a_largest_size() -> None:
    assert "1 to 1024 sequences" in faults(item(size=1025))[0]["msg"]


def test_a_large_body_is_not_sent_back_with_its_faults() -> None:
    body = {"masks": [[1] * 50_000], "scores": ["x" * 50_000]}
    response = Api().request("POST", "/scored_data", content=json.dumps(body), headers=JSON)
    assert response.status_code == 422
    assert len(response.content) < 20_000
    assert [each["loc"] for each in response.json()["detail"]] == [["body", "tokens"], ["body", "scores", 0]]


def test_not_every_fault_of_many_is_told_and_of_a_large_body_one_for_each_list() -> None:
    few = {"tokens": [["x"] * 1500], "masks": [], "scores": []}
    assert [each["loc"][2:] for each in faults(few)] == [[0, at] for at in range(100)]
    many = {"tokens": [["x"] * 5000, ["x"]], "masks": [[0.5, 1], [0.5]], "scores": ["x"] * 5, "messages": [[]] * 9}
    locs = [["body", "tokens", 0, 0], ["body", "masks", 0, 0], ["body", "scores", 0]]
    assert [each["loc"] for each in faults(many)] == locs
    both = faults(json.dumps([many, many]).encode(), "/scored_data_list")
    assert [each["loc"] for each in both] == [["body", 0, *loc[1:]] for loc in locs]


@pytest.mark.parametrize(
    ("path", "body"),
    [("/register", registration()), ("/register-env", introduction()), ("/disconnect-env", {"env_id": 0})],
)
def test_small_bodies_are_checked_alike(path: str, body: dict[str, Any]) -> None:
    for key in body:
        without = {name: value for name, value in body.items() if name != key}
        assert faults(without, path)[0]["loc"] == ["body", key]
        assert faults({**body, key: [1]}, path)[0]["loc"] == ["body", key]
        assert faults({**body, key: None}, path)[0]["loc"] == ["body", key]
    for key, value in body.items():
        if key == "env_id":
            continue
        if not isinstance(value, str):
            assert faults({**body, key: 2**63}, path)[0]["loc"] == ["body", key]
        else:
            assert faults({**body, key: "x" * 5000}, path)[0]["loc"] == ["body", key]
    if path == "/register":
        assert faults({**body, "batch_size": 0}, path)[0]["loc"] == ["body", "batch_size"]


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/x-www-form-urlencoded"])
def test_only_json_is_taken_for_json(content_type: str) -> None:
    """A page of another origin can send such a body without asking first."""
    detail = faults(item(), **{"content-type": content_type})
    assert detail[0]["type"] == "model_attributes_type"


CORPUS: list[Any] = [
    {},
    None,
    [],
    1,
    "text",
    {"tokens": [[1]], "masks": [["8"]], "scores": [True], "env_id": 1.0},
    {"tokens": [[1]], "masks": [[1.5]], "scores": ["a"]},
    {"tokens": [[True]], "masks": [[1]], "scores": [1], "env_id": "0"},
    *(
        {"tokens": [[1]], "masks": [[1]], "scores": [1], **extra}
        for extra in (
            {"messages": [[{"role": 1}]]},
            {"messages": [["a"]]},
            {"messages": ["ab"]},
            {"messages": {"a": 1}},
            {"messages": 1},
            {"messages": [[{"role": 1, "content": None, "more": []}]]},
            {"advantages": [1]},
            {"overrides": {"a": 1}},
            {"overrides": [1]},
            {"group_overrides": [1]},
            {"generation_params": "x"},
            {"distill_token_ids": [[1]]},
            {"env_id": "x"},
            {"env_id": 1.5},
            {"unknown": 1},
        )
    ),
]


@pytest.mark.parametrize("value", CORPUS, ids=lambda value: json.dumps(value)[:70])
@pytest.mark.parametrize("content_type", ["application/json", "application/x+json; charset=utf-8", "text/plain", ""])
def test_faults_are_told_as_fastapi_tells_them(value: Any, content_type: str) -> None:
    fastapi = pytest.importorskip("fastapi")
    from fastapi.testclient import TestClient

    application = fastapi.FastAPI()
    application.post("/scored_data")(_handler(fastapi))
    body = json.dumps(value).encode()
    headers = {"content-type": content_type} if content_type else {}
    theirs = TestClient(application).post("/scored_data", content=body, headers=headers)
    ours = Api().request("POST", "/scored_data", content=body, headers=headers)
    assert ours.status_code == theirs.status_code
    if theirs.status_code != 200:
        assert ours.content == theirs.content


def _handler(fastapi: Any) -> Any:
    def scored_data(item: items.LaxScoredData) -> dict[str, str]:
        return {"status": "received"}

    return scored_data


def outcome(body: bytes) -> int:
    """The status that decoding and packing come to; every other exception passes."""
    try:
        pack_item(items.decode_one(body), "environment")
    except (Invalid, Malformed) as refused:
        return refused.status
    return 200


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=amount(100, 3000), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_whatever_stands_in_a_field_is_decoded_or_refused(data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(items.KEYS))
    body = json.dumps({**item(), key: data.draw(json_values)}).encode()
    assert outcome(body) in {200, 400, 422}


@settings(max_examples=amount(100, 3000), deadline=None)
@given(st.binary(max_size=60), st.integers(0, 150), st.integers(0, 150))
def test_a_body_that_is_cut_and_mended_with_noise_is_never_an_error_of_ours(noise: bytes, start: int, end: int) -> None:
    body = json.dumps(item()).encode()
    assert outcome(body[:start] + noise + body[end:]) in {200, 400, 422}
