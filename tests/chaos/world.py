"""Clients of a storm and the control plane in one process: small true histories, made in a moment, to be spoilt."""

import asyncio
from pathlib import Path
from typing import Any, TypeVar

import httpx
from django.db import connection, transaction
from django.test import Client as DjangoClient

from environments.types import PlayedGroup
from rollouts.doors.atropos.app import application
from rollouts.models import Run, Scope
from rollouts.services.runs import life
from tests import store
from tests.chaos import atropos_clients, history, native_clients
from tests.chaos.checker import check
from tests.chaos.client import Client, parser
from tests.chaos.history import Act, Outcome, Recorder
from tests.chaos.load import make_group
from tests.factories import make_project, somebody
from tests.rollouts.api import Api, make_token
from trainers.config import resolve

LIMIT = 1
"""Off-policy steps."""
TERM_S = 10.0
"""Of a lease."""
ClientT = TypeVar("ClientT", bound=Client)


class OverDjango(httpx.BaseTransport):
    """Speaks to the native API of this process, inside the test's transaction."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        headers = {name: value for name, value in request.headers.items() if name not in {"host", "content-type"}}
        answer = DjangoClient().generic(
            request.method,
            request.url.raw_path.decode(),
            request.read(),
            content_type=request.headers.get("Content-Type", ""),
            headers=headers,
        )
        return httpx.Response(answer.status_code, headers=dict(answer.headers), content=answer.content)


class OverAsgi(httpx.BaseTransport):
    """Speaks to the Atropos-compatible API, whose threads have connections of their own: needs committed rows."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        anew = httpx.Request(request.method, request.url, headers=request.headers, content=request.read())
        return asyncio.run(self._answer(anew))

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        answer = await httpx.ASGITransport(app=application).handle_async_request(request)  # type: ignore[arg-type]
        body = await answer.aread()
        headers = {name: value for name, value in answer.headers.items() if name != "content-encoding"}
        return httpx.Response(answer.status_code, headers=headers, content=body)


class Scene:
    """A run, the histories of its clients, and means to spoil both."""

    def __init__(self, directory: Path) -> None:
        overrides = {
            "batch.batch_size": 8,
            "sampling.group_size": 4,
            "algorithm.max_off_policy_steps": LIMIT,
            "workers.lease_s": TERM_S,
        }
        resolved = resolve("external-trainer", overrides=overrides)
        self.run = life.start(life.create(project=make_project(), user=somebody(), resolved=resolved, actor="user:ada"))
        self.directory = directory

    def client(
        self, kind: type[ClientT], number: int, transport: httpx.BaseTransport | None, url: str, *more: str
    ) -> ClientT:
        """A client that waits for nobody; without a transport it goes over the network."""
        words = ["-", "--url", url, "--run", self.run.key, "--number", str(number), *more]
        options = parser().parse_args([*words, "--history", str(self.directory / f"client-{number}.jsonl")])
        client = kind(options, transport)
        client.pause = lambda seconds=0.0: None  # type: ignore[method-assign]
        return client

    def violations(self) -> set[str]:
        """The rules that are broken."""
        return {each.rule for each in check(self.run, history.read(self.directory, self.run.key))}

    def sql(self, query: str, **values: Any) -> None:
        with transaction.atomic(), store.beyond_rights(), connection.cursor() as cursor:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
            cursor.execute(query, {"run": self.run.pk, **values})

    def remember(self, act: Act, outcome: Outcome, *, heard: dict[str, Any] | None = None, **asked: Any) -> None:
        """Put a call into the history that was never made."""
        recorder = Recorder(self.directory / "planted.jsonl", self.run.key)
        recorder.hear(recorder.ask(act, **asked), act, outcome, **(heard or {}))


class World(Scene):
    """Two trainers trained a run for three steps over the native API, one after the other; one group is left."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.token = make_token([Scope.SUBMIT, Scope.TRAIN, Scope.READ])
        token = ["--token", self.token]
        self.submitter = self.client(native_clients.Submitter, 1, OverDjango(), "http://testserver", *token)
        first, second = (
            self.client(native_clients.Trainer, number, OverDjango(), "http://testserver", *token) for number in (2, 3)
        )
        first.register()
        self.step(first)
        second.register()
        first.train()  # it does not know yet that it was replaced
        self.step(second)
        self.step(second)
        self.submit(make_group(1, 90))
        self.submit(make_group(1, 90))

    def submit(self, *groups: PlayedGroup) -> None:
        assert self.submitter.submit(list(groups)) is Outcome.OK

    def submit_in_secret(self, group: PlayedGroup) -> None:
        """Store a group of which no client has heard."""
        answer = Api(self.token).post(f"runs/{self.run.key}/groups", group)
        assert answer.status_code == 201

    def step(self, trainer: native_clients.Trainer) -> None:
        step = Run.objects.get(pk=self.run.pk).next_step
        self.submit(*(make_group(1, 2 * step + at, version=step) for at in (0, 1)))
        trainer.train()


class AtroposWorld(Scene):
    """A trainer received two batches over the Atropos-compatible API and asked for a third in vain; a group is left."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        url = f"http://testserver/atropos/{self.run.address.key}"
        sizes = ["--batch-size", "8", "--group-size", "4"]
        trainer = self.client(atropos_clients.Trainer, 1, OverAsgi(), url, *sizes)
        trainer.register()
        assert trainer.fetch() is None
        environment = self.client(atropos_clients.Environment, 2, OverAsgi(), url, *sizes)
        environment.introduce()
        for number in range(5):
            assert environment.submit([make_group(2, number)]) is Outcome.OK
        self.received = [trainer.fetch() for _ in range(3)]
