"""A control plane for trainer tests: a real HTTP server that keeps its whole state in one object.

It implements the trainer routes of the REST API, fences by epoch like the real one, and can be told to fail.
"""

import hashlib
import json
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tests import http_server
from trainers import wire

RUN = "run-1"


class FakeControlPlane:
    """State of one run, as the trainer sees it."""

    def __init__(self, config: dict[str, Any], run_dir: Path) -> None:
        self.config = config
        self.run_dir = run_dir
        self.epoch = 0
        self.trainers: list[dict[str, Any]] = []
        """Bodies of the registrations: world_size, hostname, pid."""
        self.batches: dict[int, bytes] = {}
        self.make_batch: Callable[[int], wire.TrainingBatch] | None = None
        self.acks: dict[int, wire.StepAck] = {}
        self.ack_log: list[int] = []
        self.losses: list[tuple[int, float]] = []
        """Step and loss of every acknowledgement, also of repeated steps."""
        self.versions: dict[int, wire.PolicyVersionIn] = {}
        self.checkpoints: dict[int, wire.CheckpointIn] = {}
        self.optimizer_from: wire.CheckpointRef | None = None
        self.finished = False
        self.over_at_step: int | None = None
        self.requests: list[str] = []
        self.failures: list[Callable[[BaseHTTPRequestHandler], None]] = []
        """Each is taken by one request, in order, instead of the real answer."""
        self.changed = threading.Condition()

    def wait_until(self, condition: Callable[[], object], timeout_s: float = 240.0) -> None:
        """Wait until `condition` holds; it is looked at after every request."""
        with self.changed:
            assert self.changed.wait_for(condition, timeout_s), "the trainer did not get there in time"

    def batch(self, step: int) -> bytes | None:
        """The same bytes on every call."""
        with self.changed:
            if step not in self.batches and self.make_batch is not None:
                self.batches[step] = msgspec.msgpack.encode(self.make_batch(step))
            return self.batches.get(step)

    def registration(self, body: bytes) -> wire.TrainerRegistration:
        """Raise the epoch and answer like the real route."""
        self.epoch += 1
        self.trainers.append(json.loads(body))
        newest_first = sorted(self.checkpoints.values(), key=lambda checkpoint: -checkpoint.step)
        refs = [wire.CheckpointRef(step=c.step, path=c.path, manifest_sha256=c.manifest_sha256) for c in newest_first]
        return wire.TrainerRegistration(
            run=RUN,
            epoch=self.epoch,
            config=self.config,
            run_dir=str(self.run_dir),
            checkpoints=refs,
            newest_version=max(self.versions, default=-1),
            optimizer_from=self.optimizer_from,
        )


class _Handler(http_server.Handler):
    plane: FakeControlPlane

    def problem(self, status: int, code: str) -> None:
        body = json.dumps({"status": status, "code": code, "detail": code}).encode()
        self.answer(status, body, {"Content-Type": "application/problem+json"})

    def reply(self, body: Any) -> None:
        self.answer(200, msgspec.json.encode(body), {"Content-Type": "application/json"})

    def do_GET(self) -> None:
        self._handle(b"")

    def do_POST(self) -> None:
        self._handle(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def _handle(self, body: bytes) -> None:
        plane, path = self.plane, urlsplit(self.path).path.removeprefix(f"/api/v1/runs/{RUN}/")
        with plane.changed:
            plane.requests.append(f"{self.command} {path}")
            plane.changed.notify_all()
            failure = plane.failures.pop(0) if plane.failures else None
        if failure is not None:
            failure(self)
        elif path == "trainer":
            self.reply(plane.registration(body))
        elif self.headers.get(wire.EPOCH_HEADER) != str(plane.epoch):
            self.problem(409, "stale_epoch")
        else:
            self._route(path, body)

    def _route(self, path: str, body: bytes) -> None:
        plane = self.plane
        area, _, number = path.partition("/")
        if area in ("batches", "steps") and plane.over_at_step is not None and int(number) >= plane.over_at_step:
            return self.problem(410, "run_over")
        if area == "batches":
            data = plane.batch(int(number))
            if data is None:
                return self.answer(204)
            sha256 = hashlib.sha256(data).hexdigest()
            return self.answer(200, data, {"Content-Type": wire.MSGPACK, wire.SHA256_HEADER: sha256})
        with plane.changed:
            if area == "steps":
                step = int(number)
                plane.ack_log.append(step)
                ack = msgspec.json.decode(body, type=wire.StepAck)
                plane.acks.setdefault(step, ack)
                plane.losses.append((step, ack.metrics["loss/mean"]))
                self.reply({"next_step": step + 1})
            elif area == "policy-versions":
                version = msgspec.json.decode(body, type=wire.PolicyVersionIn)
                plane.versions[version.version] = version
                self.reply({})
            elif area == "checkpoints":
                checkpoint = msgspec.json.decode(body, type=wire.CheckpointIn)
                plane.checkpoints[checkpoint.step] = checkpoint
                self.reply({})
            elif path == "trainer/finish":
                plane.finished = True
                self.reply({})
            else:
                self.problem(404, "not_found")
            plane.changed.notify_all()


def serving(plane: FakeControlPlane, port: int = 0) -> AbstractContextManager[str]:
    """Serve `plane` on a local port; yields the base url."""
    return http_server.serving(type("Handler", (_Handler,), {"plane": plane}), port)
