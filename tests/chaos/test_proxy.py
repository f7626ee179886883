"""The fault proxy: passes everything on byte for byte, and cuts what it is told to cut."""

from collections.abc import Iterator

import httpx
import pytest

from tests import http_server
from tests.chaos.proxy import Proxy, running_proxy

pytestmark = pytest.mark.slow
BODY = bytes(range(256)) * 1000


class Handler(http_server.Handler):
    def do_GET(self) -> None:
        self.answer(204) if self.path == "/batches/none" else self.answer(200, BODY)


@pytest.fixture
def upstream() -> Iterator[str]:
    with http_server.serving(Handler) as url:
        yield url


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
