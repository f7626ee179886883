"""What senders and the honest client aim at: one run of a Rollyard that was started for it, and what opens it."""

from dataclasses import dataclass
from http.cookiejar import CookieJar
from typing import Self
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, build_opener

import numpy as np

from benchmarks.wire_load import payloads
from benchmarks.wire_load.connection import Address, Connection
from benchmarks.wire_load.payloads import Shape
from benchmarks.wire_load.servers import Server
from trainers.wire import EPOCH_HEADER

BATCH_ROLLOUTS = 16
SHAPE = Shape(group_size=8, tokens=200)
FORM = "application/x-www-form-urlencoded"
_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Target:
    """Addresses and credentials of one run."""

    site: Address
    run: str
    atropos: Address
    token: str
    """Of the honest client, with all scopes that clients of the data path have."""
    submit_token: str
    """One that may only submit."""
    read_token: str
    """One that may only read."""
    epoch: int
    """Of the registered trainer, for which batch 0 is ready."""
    session: str
    """The cookies of the honest client, who is signed in."""
    hostile_session: str
    """Those of somebody else's session."""
    csrf: str
    """What goes with its forms."""

    @classmethod
    def prepare(cls, server: Server) -> Self:
        """Register a trainer, store a batch, sign somebody in."""
        native = server.require(server.native, "native API")
        site = Address(native.host, native.port)
        run = native.prefix.rsplit("/", 1)[-1]
        authorization = {"Authorization": f"Token {server.token}"}
        connection = Connection(native, _TIMEOUT_S)
        epoch = connection.call("POST", "/trainer", {}, authorization).json()["epoch"]
        kind = {"Content-Type": "application/msgpack"}
        for seed in range(BATCH_ROLLOUTS // SHAPE.group_size):
            body = payloads.native_group(np.random.default_rng(seed), SHAPE)
            request = payloads.Request(native, "/groups", authorization | kind, body)
            if connection.exchange(request.stamped(10**11 + seed)).status != 201:
                raise SystemExit("a group for the first batch was not stored")
        connection.call("GET", "/batches/0?wait_s=30", headers={**authorization, EPOCH_HEADER: str(epoch)})
        connection.close()
        launch_form = site.url("/runs/new/?preset=external-trainer")
        own = _cookies_after(server.command("login-link")["login_url"])
        cookies = _cookies_after(server.command("login-link")["login_url"], launch_form)
        return cls(
            site=site,
            run=run,
            atropos=server.require(server.atropos, "Atropos endpoints"),
            token=server.token,
            submit_token=server.command("token", "create", "sender", "--scope", "submit")["token"],
            read_token=server.command("token", "create", "reader", "--scope", "read")["token"],
            epoch=epoch,
            session=_header(own),
            hostile_session=_header(cookies),
            csrf=cookies["rollyard_csrf"],
        )


def form_of_stranger(site: Address, fields: dict[str, str]) -> bytes:
    """A whole POST to the sign-in page of somebody who has looked at it before."""
    cookies = _cookies_after(site.url("/login/"))
    body = urlencode({"csrfmiddlewaretoken": cookies["rollyard_csrf"], **fields}).encode()
    headers = {"Content-Type": FORM, "Cookie": _header(cookies)}
    return site.head("POST", "/login/", headers, len(body)) + body


def _cookies_after(*urls: str) -> dict[str, str]:
    """What a browser that has looked at these pages sends along."""
    jar = CookieJar()
    browser = build_opener(HTTPCookieProcessor(jar))
    for url in urls:
        with browser.open(url, timeout=_TIMEOUT_S):
            pass
    return {cookie.name: cookie.value or "" for cookie in jar}


def _header(cookies: dict[str, str]) -> str:
    return "; ".join(f"{name}={value}" for name, value in cookies.items())
