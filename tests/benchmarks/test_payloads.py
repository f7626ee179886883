"""What the load generator sends is what real clients send, and never the same twice."""

import gzip
import json

import msgspec
import numpy as np
import pytest

from benchmarks.wire_load import payloads
from benchmarks.wire_load.connection import Address
from benchmarks.wire_load.payloads import GzipRequest, Request, Shape

ADDRESS = Address("localhost", 80, "/atropos/key")
SHAPE = Shape(group_size=4, tokens=10)


def body(request: Request | GzipRequest, number: int) -> bytes:
    """The body of a request as it goes over the wire, whose length the head must have named."""
    head, _, sent = bytes(request.stamped(number)).partition(b"\r\n\r\n")
    assert f"Content-Length: {len(sent)}".encode() in head.split(b"\r\n")
    assert request.body_bytes == len(sent)
    return sent


def atropos_group(**more: int) -> bytes:
    return payloads.atropos_group(np.random.default_rng(0), SHAPE, **more)


def test_a_group_of_atropos_masks_the_prompt() -> None:
    group = json.loads(body(Request(ADDRESS, "/scored_data", {}, atropos_group(env_id=1)), 7))
    assert set(group) == {"tokens", "masks", "inference_logprobs", "scores", "env_id"}
    assert len(group["tokens"]) == len(group["scores"]) == 4
    for tokens, mask, logprobs in zip(group["tokens"], group["masks"], group["inference_logprobs"], strict=True):
        assert mask == [-100, -100, *tokens[2:]]
        assert logprobs[:2] == [1.0, 1.0]
        assert len(logprobs) == 10
        assert max(logprobs[2:]) <= 0


def test_logprobs_can_be_left_out() -> None:
    group = payloads.atropos_group(np.random.default_rng(0), Shape(2, 10, logprobs=False))
    assert "inference_logprobs" not in json.loads(body(Request(ADDRESS, "/scored_data", {}, group), 1))


def test_every_group_of_a_list_gets_a_number_of_its_own() -> None:
    request = Request(ADDRESS, "/scored_data_list", {}, payloads.json_list([atropos_group()] * 3))
    assert request.groups == 3
    assert [group["scores"][-1] for group in json.loads(body(request, 5))] == [5e-12, 6e-12, 7e-12]
    assert [group["scores"][-1] for group in json.loads(body(request, 9))] == [9e-12, 10e-12, 11e-12]


@pytest.mark.parametrize("number", [0, 10**9 - 1, 7 * 10**9])
def test_a_gzip_body_is_one_valid_member_for_every_number(number: int) -> None:
    plain, packed = (kind(ADDRESS, "/scored_data", {}, atropos_group()) for kind in (Request, GzipRequest))
    assert gzip.decompress(body(packed, number)) == body(plain, number)
    assert b"Content-Encoding: gzip\r\n" in packed.stamped(number)


def test_gzip_takes_one_group_only() -> None:
    with pytest.raises(ValueError, match="one group"):
        GzipRequest(ADDRESS, "/scored_data_list", {}, payloads.json_list([atropos_group()] * 2))


def test_a_native_group_holds_packed_arrays_and_a_key_of_its_own() -> None:
    groups = [payloads.native_group(np.random.default_rng(seed), SHAPE) for seed in range(2)]
    request = Request(ADDRESS, "/groups", {}, payloads.msgpack_list(groups))
    sent, sent_next = (msgspec.msgpack.decode(body(request, number)) for number in (3, 5))
    assert len({group["key"] for group in (*sent, *sent_next)}) == 4
    for rollout in (rollout for group in sent for rollout in group["rollouts"]):
        assert np.frombuffer(rollout["token_ids"], "<u4").max() < payloads.VOCABULARY
        assert np.frombuffer(rollout["loss_mask"], "u1").tolist() == [0] * 2 + [1] * 8
        logprobs = np.frombuffer(rollout["inference_logprobs"], "<f4")
        assert logprobs.size == 10
        assert not logprobs[:2].any()


def test_the_path_of_a_request_begins_with_the_prefix_of_the_server() -> None:
    assert bytes(Request(ADDRESS, "/scored_data", {}, b"{}").stamped(0)).startswith(
        b"POST /atropos/key/scored_data HTTP/1.1\r\nHost: localhost:80\r\n"
    )
    assert Address.of("http://127.0.0.1:8123/atropos/abc/") == ("127.0.0.1", 8123, "/atropos/abc")
