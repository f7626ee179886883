"""Bytes in and out: compression, sizes, paths, methods, other origins."""

import asyncio
import gzip
import json
import random
import threading
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from functools import partial

import httpx
import pytest
from django.test import override_settings

from rollouts.doors import admission, compression, kernel
from rollouts.doors.atropos import app
from rollouts.doors.threads import in_large_thread, in_thread
from rollouts.errors import TooLarge
from rollouts.models import Address, ScoredGroup
from rollouts.services.runs import addresses
from tests.factories import somebody
from tests.rollouts.doors.atropos.api import Api, item, registration

pytestmark = pytest.mark.django_db(transaction=True)

GZIPPED = {"content-type": "application/json", "content-encoding": "gzip"}
MIB = 2**20


def inflated(body: bytes) -> bytes:
    return compression.inflated("gzip", body)


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "GZIP", "gzip, br"])
def test_a_compressed_body_is_read_whatever_gzip_is_called(encoding: str) -> None:
    body = gzip.compress(json.dumps(item()).encode())
    response = Api().request("POST", "/scored_data", content=body, headers={**GZIPPED, "content-encoding": encoding})
    assert (response.status_code, response.json()) == (200, {"status": "received"})


def test_a_compressed_body_may_come_on_a_get() -> None:
    body = gzip.compress(b'{"env_id": 0}')
    assert Api().request("GET", "/status-env", content=body, headers=GZIPPED).status_code == 200


def test_another_encoding_is_ignored() -> None:
    api = Api()
    assert api.request("POST", "/register", json=registration(), headers={"content-encoding": "br"}).status_code == 200


def test_an_empty_body_stays_empty() -> None:
    response = Api().request("POST", "/scored_data", content=b"", headers=GZIPPED)
    assert response.status_code == 422
    assert response.json()["detail"][0]["type"] == "missing"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"not gzip at all", id="no gzip"),
        pytest.param(gzip.compress(b"{}" * 1000)[:-1], id="a byte short"),
        pytest.param(gzip.compress(b"{}" * 1000)[:20], id="cut in the middle"),
        pytest.param(gzip.compress(b"{}")[:-8] + b"\0" * 8, id="wrong checksum"),
        pytest.param(gzip.compress(b"{}") + b"and more", id="more behind it"),
        pytest.param(zlib.compress(b"{}"), id="zlib"),
        pytest.param(b"\x1f\x8b", id="a magic number alone"),
    ],
)
def test_what_gzip_cannot_read_is_answered_400_as_text(body: bytes) -> None:
    response = Api().request("POST", "/scored_data", content=body, headers=GZIPPED)
    assert (response.status_code, response.text) == (400, "Invalid gzip payload")
    assert response.headers["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize("path", ["/scored_data", "/scored_data_list", "/register", "/register-env"])
def test_no_browser_guesses_what_an_answer_is(path: str) -> None:
    for api in (Api(), _under_an_unknown_key()):
        assert api.request("POST", path, json=item()).headers["x-content-type-options"] == "nosniff"


def _under_an_unknown_key() -> Api:
    api = Api()
    api.base = f"http://testserver/atropos/{'x' * 43}"
    return api


@pytest.mark.parametrize("path", ["/scored_data", "/scored_data_list", "/register", "/register-env"])
def test_nothing_of_a_body_under_an_unknown_key_is_looked_at(path: str) -> None:
    stranger = _under_an_unknown_key()
    for body, headers in ((b"not gzip at all", GZIPPED), (b"{", {"content-type": "application/json"})):
        assert stranger.request("POST", path, content=body, headers=headers).status_code == 404
    assert Api().request("POST", path, content=b"not gzip at all", headers=GZIPPED).status_code == 400


def test_a_key_that_was_just_in_use_opens_nothing_once_it_was_changed() -> None:
    api = Api()
    assert api.submit() == {"status": "received"}
    addresses.change(api.run, owner=somebody(), actor="user:ada")
    assert api.request("POST", "/scored_data", json=item()).status_code == 404
    assert ScoredGroup.objects.count() == 1


@pytest.mark.parametrize("length", [0, 1, 1000, compression.PIECE_BYTES, 3 * compression.PIECE_BYTES, 5 * MIB + 1])
@pytest.mark.parametrize("alphabet", [pytest.param(b"0", id="zeros"), pytest.param(bytes(range(256)), id="every byte")])
def test_inflating_gives_what_was_compressed(length: int, alphabet: bytes) -> None:
    plain = bytes(random.Random(length).choices(alphabet, k=length))
    if len(plain) > compression.FREE_BYTES and len(alphabet) == 1:
        with pytest.raises(TooLarge):
            inflated(gzip.compress(plain))
    else:
        assert inflated(gzip.compress(plain)) == plain


def test_groups_of_one_long_prompt_are_taken_however_small_they_get() -> None:
    draw = random.Random(0)
    prompt, size, answer = [draw.randrange(150_000) for _ in range(3500)], 32, 5
    group = {
        "tokens": [prompt + [draw.randrange(150_000) for _ in range(answer)] for _ in range(size)],
        "masks": [[-100] * len(prompt) + [7] * answer] * size,
        "inference_logprobs": [[1.0] * len(prompt) + [-draw.random() for _ in range(answer)] for _ in range(size)],
        "scores": [0.0, 1.0] * (size // 2),
    }
    body = json.dumps([group] * 2).encode()
    packed = gzip.compress(body)
    assert len(body) > 32 * len(packed), "or it shows nothing"
    response = Api().request("POST", "/scored_data_list", content=packed, headers=GZIPPED)
    assert response.status_code == 200, response.text
    assert ScoredGroup.objects.count() == 2


def test_members_and_the_padding_between_them_are_read() -> None:
    assert inflated(gzip.compress(b"one ") + b"\0" * 300 + gzip.compress(b"two") + b"\0") == b"one two"
    large = [bytes([number]) * 200_000 for number in range(3)]
    assert inflated(b"".join(map(gzip.compress, large))) == b"".join(large)


def test_a_bomb_is_refused_before_it_takes_memory() -> None:
    member = gzip.compress(bytes(10 * MIB), 9)
    bomb = member * (10 * MIB // len(member))  # ten megabytes, ten gigabytes
    tracemalloc.start()
    with pytest.raises(TooLarge) as refused:
        inflated(bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refused.value.status == 413
    assert peak < 16 * MIB


def test_no_body_inflates_beyond_the_limit_however_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "MAX_INFLATED_BYTES", 5 * MIB)
    digits = bytes(random.Random(0).choices(b"0123456789", k=6 * MIB))
    with pytest.raises(TooLarge):
        inflated(gzip.compress(digits, 1))


def test_what_becomes_large_waits_for_the_one_large_thread_and_holds_up_nobody() -> None:
    api = Api()
    grows = gzip.compress(b'{"tokens": "' + random.Random(0).randbytes(3 * MIB).hex().encode() + b'"}', 1)
    assert len(grows) < admission.LARGE_BYTES, "or it shows nothing"
    usual = gzip.compress(json.dumps(item()).encode())
    may_go_on = threading.Event()

    async def ask() -> list[httpx.Response]:
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app=app.application))  # type: ignore[arg-type]
        async with client, asyncio.timeout(60):
            post = partial(client.post, f"{api.base}/scored_data", headers=GZIPPED)
            before = asyncio.ensure_future(in_large_thread(may_go_on.wait, 60))
            growing = [asyncio.ensure_future(post(content=grows)) for _ in range(9)]
            try:
                answers = [await post(content=usual)]
                await asyncio.gather(*[in_thread(int) for _ in range(16)])  # behind those that grow
                assert not any(each.done() for each in growing)
            finally:
                may_go_on.set()
            await before
            return answers + await asyncio.gather(*growing)

    assert [answer.status_code for answer in asyncio.run(ask())] == [200] + [422] * 9


async def chunks(*contents: bytes) -> AsyncIterator[bytes]:
    for content in contents:
        yield content


@override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=2000)
def test_a_body_over_the_limit_is_refused_whether_it_says_its_length_or_not() -> None:
    api = Api()
    for content in (b"x" * 2001, chunks(b"x" * 1000, b"x" * 1001)):
        response = api.request("POST", "/scored_data", content=content)
        assert response.status_code == 413
        assert "fewer groups" in response.json()["detail"]
    lying = api.request("POST", "/scored_data", content=b"", headers={"content-length": "9" * 30})
    assert lying.status_code == 413
    assert not ScoredGroup.objects.exists()


@pytest.mark.parametrize("key", ["", "x"])
def test_of_a_large_body_under_an_unknown_key_the_rest_is_not_read(key: str) -> None:
    sent = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(20):
            sent += 1
            yield b" " * (MIB // 8)

    api = Api()
    api.base += key
    response = api.request("POST", "/scored_data", content=pieces(), headers={"content-type": "application/json"})
    assert (response.status_code, sent) == ((404, 3) if key else (422, 20))


def test_a_body_may_come_in_pieces() -> None:
    text = json.dumps(item()).encode()
    response = Api().request(
        "POST", "/scored_data", content=chunks(text[:10], b"", text[10:]), headers={"content-type": "application/json"}
    )
    assert response.json() == {"status": "received"}


def test_a_body_that_does_not_come_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "BODY_DEADLINE_S", 0.05)

    async def stuck() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    assert Api().request("POST", "/scored_data", content=stuck()).status_code == 408


def test_more_than_the_process_takes_in_is_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api()
    monkeypatch.setattr(admission, "MAX_REQUESTS", 0)
    response = api.request("POST", "/scored_data", json=item())
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    monkeypatch.undo()
    monkeypatch.setattr(admission, "MAX_BYTES", 0)
    with admission.admitted() as other:
        other.grow(1000)  # one alone may always be
        assert api.request("POST", "/scored_data", json=item()).status_code == 503
    assert api.request("POST", "/scored_data", json=item()).status_code == 200


def test_those_whose_body_is_not_there_yet_take_nobody_his_place(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api()
    monkeypatch.setattr(admission, "MAX_REQUESTS", 1)

    async def until_another_is_served() -> AsyncIterator[bytes]:
        yield text[:10]
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app=app.application))  # type: ignore[arg-type]
        async with client:
            served = await client.post(f"{api.base}/scored_data", json=item())
        assert served.status_code == 200
        yield text[10:]

    text = json.dumps(item()).encode()
    headers = {"content-type": "application/json"}
    assert api.request("POST", "/scored_data", content=until_another_is_served(), headers=headers).status_code == 200


def test_answers_are_compressed_from_a_thousand_bytes_for_those_who_ask() -> None:
    api = Api()
    api.submit(size=40)
    asked = api.request("GET", "/latest_example")
    assert asked.headers["content-encoding"] == "gzip"
    assert "Accept-Encoding" in asked.headers["vary"]
    plain = api.request("GET", "/latest_example", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.json() == asked.json()
    assert int(plain.headers["content-length"]) == len(plain.content)
    small = api.request("GET", "/info")
    assert "content-encoding" not in small.headers


def test_nothing_on_the_way_may_keep_an_answer() -> None:
    assert Api().request("GET", "/info").headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/nope", 404, None),
        ("GET", "/nope/", 404, None),
        ("GET", "/disconnect-trainer", 404, None),
        ("GET", "/register", 405, "POST"),
        ("HEAD", "/info", 405, "GET"),
        ("HEAD", "/", 405, "GET"),
        ("POST", "/status-env", 405, "GET"),
        ("POST", "/batch", 405, "GET"),
        ("OPTIONS", "/info", 405, "GET"),
    ],
)
def test_unknown_paths_and_methods(method: str, path: str, status: int, allow: str | None) -> None:
    response = Api().request(method, path)
    assert (response.status_code, response.headers.get("allow")) == (status, allow)
    if method != "HEAD":
        assert response.json() == {"detail": {404: "Not Found", 405: "Method Not Allowed"}[status]}


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_trailing_slash_is_redirected_away_without_losing_the_method(method: str) -> None:
    api = Api()
    response = api.request(method, "/register//?a=1")
    assert response.status_code == 307
    assert response.headers["location"] == f"/atropos/{api.run.address.key}/register?a=1"


def test_the_base_answers_with_and_without_a_slash() -> None:
    api = Api()
    assert api.get("") == api.get("/") == {"message": "AtroposLib API"}


@pytest.mark.parametrize("key", ["", "x", "a" * 32, "a" * 200, "..", "%00" * 30, "caf%C3%A9" * 5])
@pytest.mark.parametrize("path", ["", "info", "batch", "status", "latest_example", "reset_data", "wandb_info"])
def test_an_unknown_key_opens_nothing(key: str, path: str) -> None:
    api = Api()
    api.base = f"http://testserver/atropos/{key}"
    response = api.request("GET", f"/{path}")
    assert (response.status_code, response.json()) == (404, {"detail": "Not Found"})


def test_a_rotated_key_is_over_at_once() -> None:
    api = Api()
    assert api.get("/info")
    Address.objects.update(key="r" * 32)
    assert api.request("GET", "/info").status_code == 404


def test_pages_of_any_origin_may_ask() -> None:
    api = Api()
    response = api.request("GET", "/info", headers={"origin": "https://viewer.example"})
    assert response.headers["access-control-allow-origin"] == "https://viewer.example"
    assert response.headers["access-control-allow-credentials"] == "true"
    assert "Origin" in response.headers["vary"]
    assert "access-control-allow-origin" not in api.request("GET", "/info").headers
    preflight = api.request(
        "OPTIONS",
        "/scored_data",
        headers={
            "origin": "https://viewer.example",
            "access-control-request-method": "POST",
            "access-control-request-headers": "content-type, x-other",
        },
    )
    assert (preflight.status_code, preflight.text) == (200, "OK")
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert preflight.headers["access-control-allow-headers"] == "content-type, x-other"
    refused = api.request("GET", "/nope", headers={"origin": "https://viewer.example"})
    assert refused.headers["access-control-allow-origin"] == "https://viewer.example"


def test_the_api_describes_itself_without_another_host() -> None:
    api = Api()
    described = api.get("/openapi.json")
    assert set(described["paths"]["/scored_data"]) == {"post"}
    schema = described["components"]["schemas"]["LaxScoredData"]
    assert schema["required"] == ["tokens", "masks", "scores"]
    for path in ("/docs", "/redoc"):
        page = api.request("GET", path)
        assert page.status_code == 200
        assert "script-src 'self';" in page.headers["content-security-policy"]
        assert "//" not in page.text.replace("<!DOCTYPE html>", "")
    assert "openapi.json" in api.request("GET", "/docs?script").text
