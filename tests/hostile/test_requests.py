"""Requests that are odd around the body: paths, queries, headers, encodings, pieces. The body itself is a good one."""

import gzip
import itertools
import zlib
from typing import Any

import pytest

from rollouts.models import ScoredGroup
from tests.hostile.application import Answer, LeavesEarly, Target, check_refusal, check_whole
from tests.hostile.case import good
from tests.hostile.wires import Wire, written
from tests.rollouts.api import row_counts

pytestmark = [pytest.mark.django_db, pytest.mark.slow]  # by their number
GROUP, ITEM = written(Wire.JSON, good()) or b"", written(Wire.ATROPOS, good()) or b""
GZIPPED = gzip.compress(ITEM, mtime=0)
BOUNDARY = "multipart/form-data; boundary=x"
FORM = b"".join(b'--x\r\nContent-Disposition: form-data; name="n%d"\r\n\r\n1\r\n' % part for part in range(100_000))

TYPES = [
    "text/plain", "application/x-www-form-urlencoded", BOUNDARY, "multipart/form-data", "*/*", "application/jsonp",
    "application/json, text/plain", "application", "/", "application/xml", "é", "a" * 100_000, "application/ json",
]  # fmt: skip
TURNS = [
    "..",
    "%2e%2e",
    "%2E%2e%2f",
    "%252e%252e",
    "..%2f..%2f..%2fetc%2fpasswd",
    "%00",
    "info%00",
    "\\..\\",
    "%5c",
    "%ff%fe",
]
TURNS += [
    "%c0%af",
    "//",
    "/./",
    ";a=b",
    "%0d%0aX-Y:1",
    "%e2%80%ae",
    "~",
    "con",
    "*",
    "%",
    "%zz",
    "%u002e",
    "a" * 100_000,
]
QUERIES = ["wait_s=nan", "wait_s=-1", "wait_s=1e999x", "wait_s=%00", "wait_s=٣x", "wait_s=0&wait_s=x"]


def many_parts(count: int) -> bytes:
    return FORM[: len(FORM) // 100_000 * count]


def check_stored_or_refused(answer: Answer, wire: Wire, before: dict[str, int]) -> None:
    """Nothing between."""
    if answer.status in {200, 201}:
        check_whole(ScoredGroup.objects.latest("id"))
        return
    assert 400 <= answer.status < 500, (answer.status, answer.body)
    assert row_counts() == before


@pytest.mark.parametrize("content_type", TYPES, ids=lambda text: text[:40])
def test_a_good_body_of_another_type_is_refused(target: Target, content_type: str) -> None:
    before = row_counts()
    check_refusal(target.native("POST", "groups", GROUP, content_type=content_type))
    check_refusal(target.atropos("POST", "scored_data", ITEM, content_type=content_type), Wire.ATROPOS)
    assert row_counts() == before


@pytest.mark.parametrize("path", ["api", "atropos", "login"])
def test_a_form_of_a_hundred_thousand_parts_is_refused(target: Target, path: str) -> None:
    before = row_counts()
    match path:
        case "api":
            answer = target.native("POST", "groups", FORM, content_type=BOUNDARY)
        case "atropos":
            answer = target.atropos("POST", "scored_data", FORM, content_type=BOUNDARY)
        case _:
            answer = target.ask("POST", "/login/", FORM, content_type=BOUNDARY)
    assert 400 <= answer.status < 500
    assert row_counts() == before


@pytest.mark.parametrize("name", ["cut off", "bit by bit", "twice", "with more behind", "as something else"])
def test_bad_compression_is_refused(target: Target, name: str) -> None:
    bodies: list[tuple[bytes, str]] = {
        "cut off": [(GZIPPED[:end], "gzip") for end in range(1, len(GZIPPED), 7)],
        "bit by bit": [(flipped(at), "gzip") for at in range(0, 8 * len(GZIPPED), 23)],
        "twice": [(gzip.compress(GZIPPED), "gzip"), (gzip.compress(GZIPPED), "gzip, gzip")],
        "with more behind": [(GZIPPED + b"x", "gzip"), (GZIPPED + GZIPPED, "gzip"), (b"\0" + GZIPPED, "gzip")],
        "as something else": [
            (body, encoding)
            for body, encoding in itertools.product(
                (GZIPPED, zlib.compress(ITEM), b"\x28\xb5\x2f\xfd\x04"),
                ("deflate", "br", "zstd", "compress", "é" * 999),
            )
        ],
    }[name]
    for body, encoding in bodies:
        before = row_counts()
        answer = target.atropos("POST", "scored_data", body, content_encoding=encoding)
        check_stored_or_refused(answer, Wire.ATROPOS, before)
        assert answer.status != 200 or name == "bit by bit", "only the header of gzip has bits that mean nothing"
        before = row_counts()
        check_refusal(target.native("POST", "groups", body, content_encoding=encoding))
        assert row_counts() == before


def flipped(bit: int) -> bytes:
    changed = bytearray(GZIPPED)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_a_body_may_come_in_pieces_with_nothing_between(target: Target, size: int) -> None:
    for wire, body in ((Wire.JSON, GROUP), (Wire.ATROPOS, ITEM)):
        pieces = [piece for at in range(0, len(body), size) for piece in (b"", body[at : at + size])]
        path = "groups" if wire is Wire.JSON else "scored_data"
        send = target.native if wire is Wire.JSON else target.atropos
        assert send("POST", path, [*pieces, b""]).status in {200, 201}
        check_whole(ScoredGroup.objects.latest("id"))


@pytest.mark.parametrize("end", [0, 1, 100, len(GROUP) - 1])
def test_of_a_client_that_leaves_before_the_end_nothing_is_stored(target: Target, end: int) -> None:
    before = row_counts()
    native = f"/api/v1/runs/{target.run.key}/groups"
    assert target.send("POST", native, [LeavesEarly(GROUP[:end])], **target.credentials) is None
    atropos = f"/atropos/{target.external.address.key}/scored_data"
    assert target.send("POST", atropos, [LeavesEarly(ITEM[:end])]) is None
    assert row_counts() == before


@pytest.mark.parametrize("turn", TURNS, ids=lambda text: text[:30])
def test_an_odd_path_leads_nowhere(target: Target, turn: str) -> None:
    key, atropos_key, before = target.run.key, target.external.address.key, row_counts()
    targets = [
        f"/api/v1/{turn}",
        f"/api/v1/runs/{turn}",
        f"/api/v1/runs/{key}/{turn}",
        f"/api/v1/runs/{key}/groups/{turn}",
    ]
    targets += [f"/api/v1/runs/{turn}/groups", f"/api/v1/{turn}/runs/{key}", f"/api/v1/runs/{key}{turn}/groups"]
    for path, method in itertools.product(targets, ("GET", "POST")):
        answer = target.ask(method, path, GROUP, **target.credentials, content_type="application/json")
        if (method, answer.status) != ("GET", 200):  # `runs/` and a query are the list of runs
            check_refusal(answer)
    targets = [f"/atropos/{turn}", f"/atropos/{turn}/info", f"/atropos/{atropos_key}/{turn}/info"]
    targets += [f"/atropos/{atropos_key}{turn}/scored_data", f"/atropos/{atropos_key}/scored_data/{turn}"]
    for path, method in itertools.product(targets, ("GET", "POST")):
        answer = target.ask(method, path, ITEM, content_type="application/json")
        if answer.status != 307:  # to the same path without the slashes at its end
            check_refusal(answer, Wire.ATROPOS)
    assert row_counts() == before


@pytest.mark.parametrize("step", ["-1", "1e3", "0x1", "99999999999999999999", "9" * 5000, "٣", "1.0", "", " ", "None"])
def test_a_step_that_is_none_is_refused(target: Target, step: str) -> None:
    for path in (f"batches/{step}", f"steps/{step}"):
        for method in ("GET", "POST"):
            answer = target.native(method, path, b'{"metrics": {}}', rollyard_epoch="1")
            assert answer.status == 204 or 400 <= answer.status < 500, (path, answer)


@pytest.mark.parametrize("query", QUERIES)
def test_a_wait_that_is_no_time_is_refused(target: Target, query: str) -> None:
    check_refusal(target.native("GET", f"batches/0?{query.encode().decode('latin-1')}", rollyard_epoch="1"))


@pytest.mark.parametrize("value", ["x", "%00", "-9" + "9" * 30, "1e3", "%ff", "٣", "", "0&&&=&;", "a" * 100_000])
def test_a_query_is_a_number_or_refused(target: Target, value: str) -> None:
    value = value.encode().decode("latin-1")
    queries = [f"metrics?{name}={value}" for name in ("keys", "points", "after_step")] + [f"events?after_seq={value}"]
    for path in queries:
        answer = target.native("GET", path)
        assert answer.status == 200 or check_refusal(answer) is None
    assert target.ask("GET", f"/api/v1/runs?before={value}", **target.credentials).status in {200, 422}
    answer = target.atropos("GET", f"status-env?env_id={value}")
    assert answer.status == 200 or check_refusal(answer, Wire.ATROPOS) is None


@pytest.mark.parametrize(
    "method", ["HEAD", "OPTIONS", "TRACE", "PUT", "PATCH", "DELETE", "CONNECT", "PROPFIND", "get", "P" * 99]
)
def test_a_method_that_means_nothing_changes_nothing(target: Target, method: str) -> None:
    before = row_counts()
    for path in ("groups", "batches/0", "stop", "trainer", ""):
        answer = target.native(method, path, GROUP)
        assert answer.status < 500, (path, answer)
    for path in ("scored_data", "batch", "reset_data", "register", ""):
        answer = target.atropos(method, path, ITEM)
        assert answer.status < 500, (path, answer)
    assert row_counts() == before


HEADERS: list[dict[str, Any]] = [
    {"authorization": value}
    for value in (
        "",
        "Token",
        "Token ",
        "Token  x",
        "token é",
        "Token ry_" + "x" * 10_000,
        "Basic YTpi",
        "Bearer x",
        "Token a b",
    )
]
HEADERS += [{"idempotency_key": value} for value in ("", "k" * 201, "a\0", "\xff\0")]
HEADERS += [{"host": value} for value in ("evil.example", "a b", "\xff", "localhost:99999999", "[::1", "x" * 10_000)]
HEADERS += [{"cookie": value} for value in ("rollyard_session=" + "x" * 10_000, "=;=;;", "rollyard_session=\0", "\xff")]
HEADERS += [{"content_length": value} for value in ("-1", "x", "9" * 30, "1e3", "0", "٣".encode().decode("latin-1"))]
HEADERS += [{"accept": value} for value in ("text/html", "x" * 10_000, "*", "application/json;q=x", "\xff")]


@pytest.mark.parametrize("headers", HEADERS, ids=lambda headers: str(headers)[:50])
def test_an_odd_header_is_taken_or_refused(target: Target, headers: dict[str, str]) -> None:
    for method, path, body in (("POST", "groups", GROUP), ("GET", "batches/0", b""), ("GET", "events", b"")):
        before = row_counts()
        answer = target.native(method, path, body, **{"rollyard_epoch": "1"} | headers)
        assert answer.status < 500, (path, answer)
        if answer.status >= 400:
            assert row_counts() == before
    before = row_counts()
    check_stored_or_refused(target.atropos("POST", "scored_data", ITEM, **headers), Wire.ATROPOS, before)


@pytest.mark.parametrize(
    "epoch", ["", "x", "-1", "1.0", "1e0", "0x1", " 1", "٣".encode().decode("latin-1"), "9" * 30, "²"]
)
def test_an_epoch_that_is_no_number_is_refused(target: Target, epoch: str) -> None:
    epoch = epoch.encode("latin-1", "replace").decode("latin-1")
    before = row_counts()
    body = b'{"step": 0, "version": 1, "path": "/x", "manifest_sha256": "", "size_bytes": 0, "metrics": {}}'
    for method, path in (("GET", "batches/0"), ("POST", "steps/0"), ("POST", "trainer/finish")):
        check_refusal(target.native(method, path, body if "steps" in path else b"", rollyard_epoch=epoch))
    assert row_counts() == before


@pytest.mark.parametrize("length", ["-1", "x", "1e3", "٣".encode().decode("latin-1")])
def test_a_length_that_is_no_number_is_refused(target: Target, length: str) -> None:
    before = row_counts()
    for path in ("groups", "work/claim", "stop", "trainer"):
        check_refusal(target.native("POST", path, b"{}", content_length=length))
    check_refusal(target.atropos("POST", "scored_data", ITEM, content_length=length), Wire.ATROPOS)
    assert target.ask("POST", "/login/", b"username=a", content_length=length).status == 400
    assert row_counts() == before
