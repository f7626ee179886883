"""Requests out of a seed: what the corpora hold, put where a request has room for it.

Call N of a seed is the same request whichever calls came before it, so one that failed can be sent again alone.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

from tests.access.routes import PARAMETER
from tests.hostile import launches
from tests.hostile.case import good
from tests.hostile.corpus import CASES
from tests.hostile.texts import TEXTS
from tests.hostile.wires import Wire, json_of

METHODS = ("GET", "GET", "GET", "POST", "POST", "OPTIONS")
NUMBERS = (
    "0",
    "1",
    "-1",
    "9" * 18,
    "9" * 19,
    "9" * 5000,
    "1e3",
    "1e999",
    "nan",
    "²",
    "٣",
    "0x1",
    "1.0",
    "9999",
    "",
    " ",
    "None",
)
TURNS = ("..", "%2e%2e", "%00", "%2f", "//", ";a=b", "%0d%0aX-Y:1", "%e2%80%ae", "%ff", "%", "~", "\\", "a" * 3000)
PLAIN = (
    "reverse_text",
    "running",
    "train",
    "eval",
    "on",
    "[]",
    "{}",
    "[[",
    '{"a": 1}',
    "true",
    "2026-13-45",
    "delete_selected",
    "_selected_action",
    "a" * 9000,
)
WORDS = [*(text for text in TEXTS.values() if len(text) < 3000), *NUMBERS, *PLAIN]
QUERIES = (
    *("before", "state", "q", "purpose", "view", "from", "by", "keys", "points", "after_step", "after_seq", "wait_s"),
    *(
        "clone",
        "preset",
        "model",
        "next",
        "env_id",
        "format",
        "p",
        "o",
        "e",
        "all",
        "_popup",
        "_to_field",
        "_changelist_filters",
    ),
    *("state__exact", "kind__exact", "project__id__exact", "created_at__year", "created__gte", "run__key", "id__in"),
    *("object_kind", "role__exact", "term", "app_label", "model_name", "field_name", "name", "kind", "key__regex"),
)
FIELDS = (
    *(
        "toml",
        "project",
        "max_steps",
        "optimizer.lr",
        "seed",
        "name",
        "model.path",
        "environments.0.name",
        "days",
        "kind",
    ),
    *(
        "environments.0.args",
        "batch.batch_size",
        "evaluation.on",
        "sampling.group_size",
        "username",
        "password",
        "next",
    ),
    *("action", "_selected_action", "post", "memberships-TOTAL_FORMS", "memberships-INITIAL_FORMS", "memberships-0-id"),
    *("user", "role", "slug", "date_joined_0", "_save", "index", "resets_on_get", "csrfmiddlewaretoken"),
)
NAMES = (
    "holder",
    "token",
    "tokens",
    "rollouts",
    "metrics",
    "version",
    "path",
    "step",
    "source",
    "preset",
    "config",
    "limit",
)
OVERRIDES = (
    "overrides",
    "fork_from",
    "project",
    "reason",
    "env_id",
    "weight",
    "group_size",
    "batch_size",
    "desired_name",
)
FORM = "application/x-www-form-urlencoded"
TYPES = (
    "application/json",
    FORM,
    "multipart/form-data; boundary=x",
    "application/msgpack",
)
HEADERS = {
    "rollyard-epoch": NUMBERS,
    "idempotency-key": ("", "k", "k" * 300, "a\0", "\xff"),
    "accept": ("text/html", "*/*", "application/json;q=x", "\xff", "x" * 5000),
    "content-encoding": ("gzip", "deflate", "x"),
    "accept-encoding": ("gzip", "br"),
    "host": ("testserver", "evil.example", "a b", "\xff", "[::1", "localhost:99999999"),
    "origin": ("null", "http://testserver", "\xff"),
    "hx-request": ("true", "\xff"),
    "hx-current-url": ("%", "http://[", "\xff" * 100),
    "hx-request-uri-autoencoded": ("true",),
    "range": ("bytes=0-", "x"),
    "if-modified-since": ("x", "Sat, 99 Foo 99999 99:99:99 GMT"),
    "if-none-match": ("*", '"x"', "\xff"),
    "referer": ("http://testserver/", "%", "\xff"),
    "x-forwarded-proto": ("https",),
    "content-length": ("-1", "x", "9" * 30),
    "cookie": ("rollyard_session=\0", "=;=;;", "rollyard_session=" + "x" * 5000, "messages=x; rollyard_csrf=\xff"),
}
GROUPS = [body for case in CASES if not case.is_large for body in case.bodies(Wire.JSON).values()]
ITEMS = [body for case in CASES if not case.is_large for body in case.bodies(Wire.ATROPOS).values()]
MOST_BYTES = 20_000
"""Of a body: large ones are the business of `test_memory.py`."""


@dataclass(frozen=True)
class Request:
    """What is sent."""

    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    def __str__(self) -> str:
        headers = "".join(f"\n  {name}: {value[:200]!r}" for name, value in self.headers.items())
        return f"{self.method} {self.target[:600]!r}{headers}\n  {len(self.body)} bytes: {self.body[:400]!r}"


@dataclass(frozen=True)
class Places:
    """What there is to be asked for, and what opens it."""

    parameters: Mapping[str, list[str]]
    """Of a route -> what may stand there."""
    dear: list[str]
    """Routes that answer with a page, which takes ten times as long as the others: one call in 33."""
    cheap: list[str]
    sources: list[str]
    """Queries of the launch form: what its values begin with."""
    presets: list[str]
    names: list[str]
    """Of models and checkpoints."""
    project: str
    """In which things are launched."""
    lists: list[tuple[str, str]]
    """Paths of the administration site's lists, and the dates that they go by, or nothing."""
    atropos: list[str]
    """Paths under an address."""
    addresses: list[str]
    machines: list[Mapping[str, str]]
    """Headers that open the API; empty ones of nobody."""
    people: list[Mapping[str, str]]
    """Headers of sessions."""


class Fuzz:
    """The requests of a seed."""

    def __init__(self, seed: int, places: Places) -> None:
        self.seed = seed
        self.places = places

    def request(self, number: int) -> Request:
        """Call ``number``: where to, in whose name, and what with it."""
        draw = random.Random(f"{self.seed}/{number}")
        kind = draw.random()
        if kind < 0.03:
            return self._page(draw)
        if kind < 0.04:
            return self._list(draw)
        if kind < 0.055:
            return self._form(draw)
        if kind < 0.07:
            return self._launch(draw)
        if kind < 0.43:
            return self._atropos(draw)
        if kind < 0.55:
            return self._native(draw)
        return self._by_nobody(draw)

    def _page(self, draw: random.Random) -> Request:
        path = self._path(draw, draw.choice(self.places.dear), oddity=0.2)
        return self._with(draw, draw.choice(METHODS), path, dict(draw.choice(self.places.people)), _filled(draw))

    def _list(self, draw: random.Random) -> Request:
        """Rows by a date, or something done with some of them."""
        path, dates = draw.choice(self.places.lists)
        headers = dict(draw.choice(self.places.people))
        if dates and draw.random() < 0.5:
            parts = ("year", "month", "day", "gte", "lt")[: draw.randint(1, 5)]
            query = _encoded([(f"{dates}__{part}", draw.choice(NUMBERS)) for part in parts])
            return Request("GET", f"{path}?{query}", headers)
        rows = self.places.parameters["object_id"]
        picked = [draw.choice(rows if draw.random() < 0.5 else WORDS) for _ in range(draw.randint(1, 3))]
        pairs = [("action", "delete_selected"), *(("_selected_action", each) for each in picked)]
        pairs += [(name, draw.choice(WORDS)) for name in ("index", "post", "select_across") if draw.random() < 0.4]
        headers["content-type"] = FORM
        return Request("POST", path, headers, _encoded(pairs).encode())

    def _form(self, draw: random.Random) -> Request:
        """The launch form, with a preset or a run that there is, and TOML."""
        path = f"/runs/new/{draw.choice(('check/', 'check/', 'make-model/', ''))}?{draw.choice(self.places.sources)}"
        fields: list[tuple[str, str | bytes]] = [("toml", launches.toml(draw, self.places.names))]
        fields += [(draw.choice(launches.KEYS), draw.choice(WORDS)) for _ in range(draw.choice((0, 0, 1, 4)))]
        fields += [("project", self.places.project)]
        headers = {**draw.choice(self.places.people), "content-type": FORM}
        return Request("POST", path, headers, _encoded(fields).encode())

    def _launch(self, draw: random.Random) -> Request:
        headers = {"content-type": TYPES[0], **self.places.machines[0]}
        return Request("POST", "/api/v1/runs", headers, launches.body(draw, self.places.names, self.places.presets))

    def _native(self, draw: random.Random) -> Request:
        path = self._path(draw, draw.choice(self.places.cheap), oddity=0.3)
        body = draw.choice(GROUPS) if draw.random() < 0.4 else _json(draw)
        headers = {"content-type": "application/json", **draw.choice(self.places.machines)}
        return self._with(draw, draw.choice(METHODS), path, headers, body)

    def _atropos(self, draw: random.Random) -> Request:
        address = draw.choice(self.places.addresses) if draw.random() < 0.9 else _odd(draw)
        path = f"/atropos/{address}/{draw.choice(self.places.atropos) if draw.random() < 0.9 else _odd(draw)}"
        body = draw.choice(ITEMS) if draw.random() < 0.5 else _json(draw)
        return self._with(draw, draw.choice(METHODS), path, {"content-type": "application/json"}, body)

    def _by_nobody(self, draw: random.Random) -> Request:
        path = self._path(draw, draw.choice(self.places.dear + self.places.cheap), oddity=0.6)
        return self._with(draw, draw.choice(METHODS), path, {}, _filled(draw))

    def _path(self, draw: random.Random, route: str, *, oddity: float) -> str:
        def value(name: str) -> str:
            return _odd(draw) if draw.random() < oddity else draw.choice(self.places.parameters.get(name, ["1"]))

        path = "/" + PARAMETER.sub(lambda found: value(found["name"]), route)
        return f"{path}{draw.choice(TURNS)}" if draw.random() < 0.05 else path

    def _with(self, draw: random.Random, method: str, path: str, headers: dict[str, str], body: bytes) -> Request:
        """Around what is asked: a query, odd headers, and sometimes a body that is cut or has noise in it."""
        if draw.random() < 0.4:
            pairs = [(draw.choice(QUERIES), draw.choice(WORDS)) for _ in range(draw.randint(1, 3))]
            path += "?" + (_encoded(pairs) if draw.random() < 0.9 else _odd(draw))
        if draw.random() < 0.15:
            name = draw.choice(list(HEADERS))
            headers[name] = draw.choice(HEADERS[name]).encode().decode("latin-1")
        if draw.random() < 0.05:
            headers["content-type"] = draw.choice(TYPES)
        if body and draw.random() < 0.15:
            at = draw.randrange(len(body))
            body = body[:at] + draw.randbytes(draw.randint(0, 8)) + body[at + draw.randint(0, 8) :]
        has_body = method == "POST" or draw.random() < 0.1
        return Request(method, path, headers, body[:MOST_BYTES] if has_body else b"")


def _odd(draw: random.Random) -> str:
    """What stands in a path in place of what should."""
    word = draw.choice(WORDS) if draw.random() < 0.6 else draw.choice(TURNS)
    return word if word in TURNS else quote(word.encode(errors="replace"), safe=draw.choice(("", "/", "/%")))


def _filled(draw: random.Random) -> bytes:
    return _encoded([(name, draw.choice(WORDS)) for name in draw.sample(FIELDS, draw.randint(0, 5))]).encode()


def _encoded(pairs: Sequence[tuple[str, str | bytes]]) -> str:
    return urlencode(pairs, errors="replace")


def _json(draw: random.Random) -> bytes:
    values = (*WORDS, 0, -1, 2**63, 2**200, 1e308, None, True, [], {}, [[]], {"a": {"b": []}}, good(), [good()])
    body = {draw.choice(NAMES + OVERRIDES): draw.choice(values) for _ in range(draw.randint(0, 5))}
    if draw.random() < 0.05:
        levels = draw.choice((50, 900, 9000))
        return b'{"a":' * levels + b"0" + b"}" * levels
    return json.dumps(body).encode() if draw.random() < 0.5 else json_of(body)
