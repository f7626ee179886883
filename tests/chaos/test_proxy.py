"""The fault proxy: passes everything on byte for byte, and cuts what it is told to cut."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from tests.chaos.proxy import Proxy, running_proxy

pytestmark = pytest.mark.slow
BODY = bytes(range(256)) * 1000


class Server(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(204 if self.path == "/batches/none" else 200)
        if self.path != "/batches/none":
            self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        if self.path != "/batches/none":
            self.wfile.write(BODY)

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True  # it was cut

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""


@pytest.fixture
def upstream() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_a_response_that_is_cut_never_looks_whole(upstream: str) -> None:
    proxy = Proxy(upstream, path="^/batches/", seed=1, chance=1.0)
    with running_proxy(proxy) as url:
        for _ in range(20):
            with pytest.raises(httpx.TransportError), httpx.Client() as client:
                client.get(f"{url}/batches/0")
    assert len(proxy.cuts) == 20
    assert all(0 <= cut.passed_bytes < cut.length_bytes for cut in proxy.cuts)
    assert len({cut.passed_bytes for cut in proxy.cuts}) > 15


def test_what_is_not_cut_comes_byte_for_byte_over_one_connection(upstream: str) -> None:
    proxy = Proxy(upstream, path="^/batches/", seed=1, chance=0.0)
    with running_proxy(proxy) as url, httpx.Client() as client:
        assert [client.get(f"{url}{path}").content for path in ("/batches/0", "/healthz")] == [BODY, BODY]
    assert proxy.cuts == []


def test_only_successful_answers_to_matching_paths_are_cut(upstream: str) -> None:
    proxy = Proxy(upstream, path="^/batches/", seed=1, chance=1.0)
    with running_proxy(proxy) as url, httpx.Client() as client:
        assert client.get(f"{url}/other").content == BODY
        assert client.get(f"{url}/batches/none").status_code == 204
        assert proxy.cuts == []


def test_the_same_seed_cuts_at_the_same_bytes(upstream: str) -> None:
    offsets = []
    for _ in range(2):
        proxy = Proxy(upstream, path="^/batches/", seed=5, chance=1.0)
        with running_proxy(proxy) as url:
            for _ in range(5):
                with pytest.raises(httpx.TransportError), httpx.Client() as client:
                    client.get(f"{url}/batches/0")
        offsets.append([cut.passed_bytes for cut in proxy.cuts])
    assert offsets[0] == offsets[1]


def test_a_server_that_is_away_is_a_connection_that_ends() -> None:
    with running_proxy(Proxy("http://127.0.0.1:1", path=".", seed=1)) as url, pytest.raises(httpx.TransportError):
        httpx.get(url)
