"""What hostile senders send: each kind is bytes that are made beforehand, in the pieces in which they go out."""

import gzip
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from benchmarks.hostile_load.target import FORM, Target, form_of_stranger
from benchmarks.wire_load.connection import Address
from benchmarks.wire_load.payloads import STAMP

MIB = 2**20
LARGE_BYTES = 60 * MIB
"""Just below what the server takes of anything."""
FORM_BYTES = 64_000
"""Just below what it takes of a form."""
BOMB_BYTES = 470 * 10**6
SLOW_CONNECTIONS = 64
"""That each slow sender holds."""
JSON = "application/json"


@dataclass(frozen=True)
class Attack:
    """One request, again and again."""

    request: bytes
    """Where it has the stamp of `payloads.py`, each one has another number."""
    trickles: bool = False
    """Byte by byte, on many connections, instead of at once and waiting for the answer."""
    is_body: bool = False
    """It has a body that fails, whose cost is bounded."""


Build = Callable[[Target], Attack]


def _post(address: Address, path: str, headers: dict[str, str], body: bytes) -> Attack:
    return Attack(address.head("POST", path, headers, len(body)) + body, is_body=True)


def _login(body: Callable[[], bytes], content_type: str = FORM) -> Build:
    return lambda to: _post(to.site, "/login/", {"Content-Type": content_type}, body())


def _api(path: str, body: Callable[[], bytes], token: Callable[[Target], str], content_type: str = JSON) -> Build:
    def build(to: Target) -> Attack:
        headers = {"Content-Type": content_type, "Authorization": f"Token {token(to)}"}
        return _post(to.site, path.format(run=to.run), headers, body())

    return build


def _atropos(body: Callable[[], bytes], *, knows_key: bool) -> Build:
    def build(to: Target) -> Attack:
        address = to.atropos if knows_key else to.atropos._replace(prefix="/atropos/" + "x" * 40)
        return _post(address, "/scored_data", {"Content-Type": JSON, "Content-Encoding": "gzip"}, body())

    return build


def _get(path: str, headers: dict[str, str] | None = None, method: str = "GET") -> Build:
    return lambda to: Attack(to.site.head(method, path.format(run=to.run), headers))


def _socket(origin: str) -> Build:
    def build(to: Target) -> Attack:
        headers = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
            "Origin": origin or to.site.url(""),
        }
        return Attack(to.site.head("GET", "/ws/", headers))

    return build


def _password(to: Target) -> Attack:
    request = form_of_stranger(to.site, {"username": STAMP.decode(), "password": "wrong"})
    return Attack(request.replace(quote(STAMP.decode(), safe="").encode(), b"u" * 24 + STAMP), is_body=True)


def _launch_form(toml: str) -> Build:
    def build(to: Target) -> Attack:
        body = urlencode({"csrfmiddlewaretoken": to.csrf, "toml": toml}).encode()
        headers = {"Content-Type": FORM, "Cookie": to.hostile_session}
        return _post(to.site, "/runs/new/check/?preset=external-trainer", headers, body)

    return build


def _slow(head: str) -> Build:
    return lambda to: Attack(head.format(run=to.run, token=to.submit_token).encode(), trickles=True)


def _filled(start: bytes, filling: bytes, end: bytes = b"", size: int = LARGE_BYTES) -> Callable[[], bytes]:
    return lambda: start + filling * ((size - len(start) - len(end)) // len(filling)) + end


def _bomb() -> bytes:
    return gzip.compress(b"[" * BOMB_BYTES, 9)


def _bomb_within_the_ratio() -> bytes:
    """JSON of two hundred megabytes in a few, as a large body of numbers might be."""
    compressor = zlib.compressobj(9, wbits=16 + zlib.MAX_WBITS)
    block = compressor.compress(b'{"tokens":[[') + compressor.compress(b"1," * (100 * 10**6)) + compressor.flush()
    noise = zlib.compressobj(0, wbits=16 + zlib.MAX_WBITS)
    return block + noise.compress(b"1," * (1_100_000)) + noise.flush()


def _unknown(_: Target) -> str:
    return "ry_" + "x" * 60


GROUPS = "/api/v1/runs/{run}/groups"
KINDS: dict[str, Build] = {
    "form-60mb": _login(_filled(b"a=", b"%41")),
    "form-64kb": _login(_filled(b"a=", b"%41", size=FORM_BYTES)),
    "form-fields": _login(_filled(b"", b"a=%41&", size=FORM_BYTES)),
    "text-60mb": _login(_filled(b"", b"a"), "text/plain"),
    "json-stranger": _api("/api/v1/runs", _filled(b"", b"["), _unknown),
    "bomb-stranger": _atropos(_bomb, knows_key=False),
    "bomb-known": _atropos(_bomb, knows_key=True),
    "bomb-modest": _atropos(_bomb_within_the_ratio, knows_key=True),
    "passwords": _password,
    "tokens": _get("/api/v1/runs/{run}", {"Authorization": "Token ry_" + "x" * 60}),
    "links": _get("/login/link/" + "x" * 43),
    "keys": _get("/atropos/" + "x" * 40 + "/status"),
    "sockets-foreign": _socket("http://elsewhere.example"),
    "sockets-stranger": _socket(""),
    "submit-read-only": _api(GROUPS, _filled(b"", b"["), lambda to: to.read_token),
    "submit-deep": _api(GROUPS, _filled(b"", b"["), lambda to: to.submit_token),
    "submit-huge": _api(GROUPS, _filled(b'{"tokens":[', b"1,", b"1]"), lambda to: to.submit_token),
    "submit-late-fault": _api(
        GROUPS,
        _filled(b'{"environment":"x","problem_key":"x","rollouts":[{"token_ids":[', b"1,", b"1]}]}"),
        lambda to: to.submit_token,
    ),
    "toml-deep": _launch_form("a = " + "[" * 15_000),
    "toml-keys": _launch_form("\n".join(f"[a.{'b.' * 20}c{number}]" for number in range(700))),
    "slow-heads": _slow("GET /api/v1/runs/{run} HTTP/1.1\r\nHost: localhost\r\nX: " + "x" * 1000),
    "slow-bodies": _slow(
        "POST /api/v1/runs/{run}/groups HTTP/1.1\r\nHost: localhost\r\nAuthorization: Token {token}\r\n"
        "Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n" + "[" * 1000
    ),
    "unknown-paths": _get("/" + "no-such-page/"),
    "unknown-api": _get("/api/v1/no-such-path"),
    "options": _get("/api/v1/runs", method="OPTIONS"),
}
"""Name -> what senders of that kind send."""
