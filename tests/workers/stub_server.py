"""A server with vLLM's routes and no model, for what a real one does not do on demand: fail, hang, answer nonsense.

Run as a replica (`python -m tests.workers.stub_server PORT`) or in the test's own process. `POST /stub {"mode": ...}`:

    ok      answers             nan     every logprob is NaN, as vLLM spells it
    error   500 to generation   hang    generation never answers
    half    loading weights fails half way: the server stays paused and labelled `loading`
"""

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast
from urllib.parse import urlsplit

import httpx

from tests import http_server

_HANG_S = 600.0


class StubServer(http_server.Server):
    """Its state, which requests change."""

    def __init__(self, port: int = 0, *, version: str = "none") -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.mode = "ok"
        self.label = version
        self.paused = False
        self.generated = 0
        self.loads: list[str] = []
        self.ending = threading.Event()


class _Handler(http_server.Handler):
    def do_GET(self) -> None:
        stub = cast(StubServer, self.server)
        answers: dict[str, Any] = {
            "/weight_info": {"weight_version": stub.label},
            "/is_paused": {"is_paused": stub.paused},
            "/stub": {"generated": stub.generated, "loads": stub.loads},
        }
        self._answer(answers[urlsplit(self.path).path])

    def do_POST(self) -> None:
        stub = cast(StubServer, self.server)
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body: dict[str, Any] = json.loads(text) if text else {}
        match urlsplit(self.path).path:
            case "/stub":
                stub.mode = body["mode"]
                self._answer({})
            case "/v1/chat/completions/render":
                self._answer({"token_ids": [1, 2, 3]})
            case "/inference/v1/generate":
                self._generate(stub, body)
            case "/update_weight_version":
                stub.label = body["new_version"]
                self._answer({})
            case "/pause":
                stub.paused = True
                self._answer({})
            case "/resume":
                stub.paused = False
                self._answer({})
            case "/collective_rpc":
                stub.loads.append(text.decode())
                self._answer({}, status=500 if stub.mode == "half" else 200)
            case "/reset_prefix_cache":
                self._answer({"success": True})

    def _generate(self, stub: StubServer, body: dict[str, Any]) -> None:
        until = time.monotonic() + _HANG_S
        while (stub.mode == "hang" or stub.paused) and time.monotonic() < until:
            if stub.ending.wait(0.02):
                return
        if stub.mode == "error":
            return self._answer({"error": {"message": "told to fail"}}, status=500)
        sampling = body["sampling_params"]
        length = min(2, sampling["max_tokens"])
        logprob = -9999.0 if stub.mode == "nan" else -0.5
        choice = {
            "token_ids": [7] * length,
            "text": "gg",
            "finish_reason": "stop",
            "logprobs": {"content": [{"logprob": logprob}] * length},
            "weight_versions": [{"version": stub.label}],
        }
        stub.generated += 1
        self._answer({"choices": [choice] * sampling.get("n", 1)})

    def _answer(self, content: dict[str, Any], status: int = 200) -> None:
        self.answer(status, json.dumps(content).encode(), {"Content-Type": "application/json"})


@contextmanager
def stub_server(*, version: int = 0) -> Iterator[StubServer]:
    """A stub in this process."""
    stub = StubServer(version=str(version))
    with http_server.running(stub):
        try:
            yield stub
        finally:
            stub.ending.set()


def tell(url: str, mode: str) -> None:
    """Change the mode of a stub that runs as a process."""
    httpx.post(f"{url}/stub", json={"mode": mode}, timeout=10, trust_env=False).raise_for_status()


if __name__ == "__main__":
    StubServer(int(sys.argv[1])).serve_forever()
