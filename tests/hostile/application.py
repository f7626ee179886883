"""The ASGI application as a server calls it, with requests that no client library would send, and what it stored."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import unquote

import numpy as np

from controlplane.asgi import application
from rollouts.formats.arrays import COUNT, LOGPROB, MASK, TOKEN_ID, split
from rollouts.models import Event, GroupTokens, Run, Scope, ScoredGroup
from tests.factories import make_run
from tests.hostile.wires import Wire
from tests.rollouts.api import make_token
from tests.rollouts.doors.atropos.api import make_external_run

PROBLEM = "application/problem+json"
JSON = {"content_type": "application/json"}


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class LeavesEarly(bytes):
    """The last piece of a body of which more was promised: then the client goes away."""


async def call(
    method: str,
    target: str,
    headers: Mapping[str, str] = {},
    pieces: Sequence[bytes] = (b"",),
    state: Mapping[str, Any] = {},
) -> Answer | None:
    """One request, the body in pieces, the target as it stands in the request line; None when nothing came back.

    ``state`` is what the server knows of the connection. What the application raises passes, as nothing between it and
    the test would make a 500 of it.
    """
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    path, _, query = target.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": raw if "host" in headers else [(b"host", b"testserver"), *raw],
        "client": ("127.0.0.1", 1),
        "server": ("testserver", 80),
        "state": dict(state),
    }
    waiting: list[dict[str, Any]] = [
        {"type": "http.request", "body": piece, "more_body": at + 1 < len(pieces) or isinstance(piece, LeavesEarly)}
        for at, piece in enumerate(pieces)
    ]
    if isinstance(pieces[-1], LeavesEarly):
        waiting.append({"type": "http.disconnect"})
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if waiting:
            return waiting.pop(0)
        return await asyncio.Future()  # the client waits for the answer

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await application(scope, receive, send)
    if not sent:
        return None
    start, rest = sent[0], sent[1:]
    return Answer(
        start["status"],
        {name.decode().lower(): value.decode("latin-1") for name, value in start["headers"]},
        b"".join(message.get("body", b"") for message in rest),
    )


@dataclass
class Target:
    """A run that our trainer trains and one of an external trainer, and what opens them."""

    run: Run = field(default_factory=partial(make_run, overrides={"sampling.group_size": 2, "batch.batch_size": 4}))
    spare: Run = field(default_factory=make_run)
    """One that may be stopped."""
    external: Run = field(default_factory=make_external_run)
    token: str = field(default_factory=make_token)
    reader: str = field(default_factory=partial(make_token, [Scope.READ]))
    """A token that may only read."""
    loop: asyncio.Runner = field(default_factory=asyncio.Runner)

    def ask(self, method: str, target: str, body: bytes | Sequence[bytes] = b"", **headers: str) -> Answer:
        """One request that is answered; underscores in the names of headers are dashes."""
        answer = self.send(method, target, body, **headers)
        assert answer is not None, "no answer"
        return answer

    def send(self, method: str, target: str, body: bytes | Sequence[bytes] = b"", **headers: str) -> Answer | None:
        """One request, perhaps without an answer."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.loop.run(call(method, target, named, [body] if isinstance(body, bytes) else body))

    def native(self, method: str, path: str, body: bytes | Sequence[bytes] = b"", **headers: str) -> Answer:
        """A request to the native API of the run, with a token of all scopes."""
        return self.ask(method, f"/api/v1/runs/{self.run.key}/{path}", body, **self.credentials | JSON | headers)

    def atropos(self, method: str, path: str, body: bytes | Sequence[bytes] = b"", **headers: str) -> Answer:
        """A request to the Atropos-compatible API of the other run."""
        return self.ask(method, f"/atropos/{self.external.address.key}/{path}", body, **JSON | headers)

    @property
    def credentials(self) -> dict[str, str]:
        return {"authorization": f"Token {self.token}"}

    def submit(self, wire: Wire, body: bytes, *, many: bool = False) -> Answer:
        """Groups, by the wire they are written for."""
        if wire is Wire.ATROPOS:
            return self.atropos("POST", "scored_data_list" if many else "scored_data", body)
        return self.native("POST", "groups", body, content_type=wire.content_type)


def check_refusal(answer: Answer, wire: Wire | None = None) -> None:
    """The answer is a refusal in the words of its API."""
    assert 400 <= answer.status < 500, (answer.status, answer.body[:500])
    if wire is Wire.ATROPOS:
        assert answer.json()["detail"]
        return
    problem = answer.json()
    assert answer.headers["content-type"] == PROBLEM
    assert problem["status"] == answer.status
    assert problem["detail"]
    assert problem["type"] == f"urn:rollyard:problem:{problem['code']}"


def check_whole(group: ScoredGroup) -> None:
    """All of the group is there, or none of it would be."""
    tokens = GroupTokens.objects.get(group=group)
    rollouts = list(group.rollouts.order_by("index"))
    lengths = np.frombuffer(tokens.lengths, COUNT).tolist()
    assert [each.index for each in rollouts] == list(range(group.rollout_count))
    assert [each.token_count for each in rollouts] == lengths
    assert group.token_count == sum(lengths)
    for name, kind in (("token_ids", TOKEN_ID), ("loss_mask", MASK), ("inference_logprobs", LOGPROB)):
        assert len(getattr(tokens, name)) == kind.itemsize * sum(lengths)
    assert Event.objects.filter(object_kind="scoredgroup", object_id=group.pk).exists()


def columns_of(group: ScoredGroup) -> dict[str, list[Any]]:
    """What is stored of each rollout, under the native names."""
    tokens = GroupTokens.objects.get(group=group)
    lengths = np.frombuffer(tokens.lengths, COUNT).tolist()
    rollouts = list(group.rollouts.order_by("index"))
    names = ("reward", "messages", "metrics", "replica")
    columns: dict[str, list[Any]] = {name: [getattr(each, name) for each in rollouts] for name in names}
    kinds = {"token_ids": TOKEN_ID, "loss_mask": MASK}
    kinds |= dict.fromkeys(("inference_logprobs", "ref_logprobs", "advantages"), LOGPROB)
    for name, kind in kinds.items():
        if (data := getattr(tokens, name)) is not None:
            columns[name] = [np.frombuffer(part, kind).tolist() for part in split(data, lengths, kind.itemsize)]
    return columns
