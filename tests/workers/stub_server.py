"""A server with vLLM's routes and no model, for what a real one does not do on demand: fail, hang, answer nonsense.

A replica (`python -m tests.workers.stub_server SOCKET`), or in the test's own process. `POST /stub {"mode": ...}`:

    ok      answers             nan     every logprob is NaN, as vLLM spells it
    error   500 to generation   hang    generation never answers
    refuse  400 to generation   full    the same, and tokens for others come all the time
    half    loading weights fails half way: the server stays paused and labelled `loading`
    stuck   pausing never answers
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

from environments.client.address import address
from tests import http_server

_HANG_S = 600.0


def metrics(*, running: object = 0, waiting: object = 0, share: object = 0.0, tokens: object = 0) -> str:
    """What of vLLM's answer to `/metrics` is read, and something beside it."""
    labels = '{engine="0",model_name="policy"}'
    return (
        "# HELP vllm:num_requests_running Number of requests in model execution batches.\n"
        "# TYPE vllm:num_requests_running gauge\n"
        f"vllm:num_requests_running{labels} {running}\n"
        f"vllm:num_requests_waiting{labels} {waiting}\n"
        f'vllm:num_requests_waiting_by_reason{{engine="0",reason="capacity"}} 7.0\n'
        f"vllm:kv_cache_usage_perc{labels} {share}\n"
        f"vllm:generation_tokens_total{labels} {tokens}\n"
        f"vllm:generation_tokens_created{labels} 1.7e+09\n"
    )


class Stub:
    """Its state, which requests change."""

    def __init__(self, *, version: str = "none") -> None:
        self.mode = "ok"
        self.label = version
        self.paused = False
        self.delay_s = 0.0
        """Before it answers to generation."""
        self.asked = 0
        """For generation, answered or not."""
        self.generated = 0
        self.tokens = 0
        self.loads: list[str] = []
        self.chats: list[dict[str, Any]] = []
        """What was asked for over the chat route."""
        self.says = "<action>pass</action>"
        """There."""
        self.ending = threading.Event()


class StubServer(Stub, http_server.Server):
    """In the test's own process."""

    def __init__(self, *, version: str = "none") -> None:
        Stub.__init__(self, version=version)
        http_server.Server.__init__(self, ("127.0.0.1", 0), _Handler)


class StubReplica(Stub, http_server.LocalServer):
    """As a process of its own."""

    def __init__(self, path: str) -> None:
        Stub.__init__(self)
        http_server.LocalServer.__init__(self, path, _Handler)


class _Handler(http_server.Handler):
    def do_GET(self) -> None:
        stub = cast(Stub, self.server)
        if self.path == "/metrics":
            stub.tokens += stub.mode == "full"
            return self.answer(200, metrics(tokens=stub.tokens).encode())
        answers: dict[str, Any] = {
            "/weight_info": {"weight_version": stub.label},
            "/is_paused": {"is_paused": stub.paused},
            "/stub": {"generated": stub.generated, "loads": stub.loads, "chats": stub.chats},
        }
        self._answer(answers[urlsplit(self.path).path])

    def do_POST(self) -> None:
        stub = cast(Stub, self.server)
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body: dict[str, Any] = json.loads(text) if text else {}
        match urlsplit(self.path).path:
            case "/stub":
                stub.mode = body["mode"]
                self._answer({})
            case "/v1/chat/completions":
                self._chat(stub, body)
            case "/v1/chat/completions/render":
                self._answer({"token_ids": [1, 2, 3]})
            case "/inference/v1/generate":
                self._generate(stub, body)
            case "/update_weight_version":
                stub.label = body["new_version"]
                self._answer({})
            case "/pause" if stub.mode == "stuck":
                stub.ending.wait(_HANG_S)
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

    def _may_go_on(self, stub: Stub) -> bool:
        """Whether it answers, after its delay; False when it has said what there is to say."""
        stub.asked += 1
        until = time.monotonic() + _HANG_S
        while (stub.mode in ("hang", "full") or stub.paused) and time.monotonic() < until:
            if stub.ending.wait(0.02):
                return False
        if stub.delay_s and stub.ending.wait(stub.delay_s):
            return False
        if stub.mode in ("error", "refuse"):
            told = {"error": ("told to fail", 500), "refuse": ("told to refuse", 400)}
            message, status = told[stub.mode]
            self._answer({"error": {"message": message}}, status=status)
            return False
        return True

    def _chat(self, stub: Stub, body: dict[str, Any]) -> None:
        if not self._may_go_on(stub):
            return
        stub.chats.append(body)
        message = {"role": "assistant", "content": stub.says}
        usage = {"prompt_tokens": 7, "completion_tokens": 3}
        self._answer({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})

    def _generate(self, stub: Stub, body: dict[str, Any]) -> None:
        if not self._may_go_on(stub):
            return
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
        stub.tokens += length * sampling.get("n", 1)
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
    with _client(url) as client:
        client.post("/stub", json={"mode": mode}).raise_for_status()


def told(url: str) -> dict[str, Any]:
    """What a stub that runs as a process has been asked."""
    with _client(url) as client:
        found: dict[str, Any] = client.get("/stub").raise_for_status().json()
    return found


def _client(url: str) -> httpx.Client:
    base_url, path = address(url)
    transport = httpx.HTTPTransport(uds=path) if path else None
    return httpx.Client(base_url=base_url, transport=transport, trust_env=False, timeout=10)


if __name__ == "__main__":
    StubReplica(sys.argv[1]).serve_forever()
