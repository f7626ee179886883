"""Where an agent listens: an address of its machine by which it reaches the control plane."""

import socket
from typing import Any

import pytest

from workers.agent import address_towards
from workers.nodes import NoAddress, Node

OF_IPV4 = (socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("127.0.0.1", 8000))
OF_IPV6 = (socket.AF_INET6, socket.SOCK_DGRAM, 17, "", ("::1", 8000, 0, 0))


def resolve(monkeypatch: pytest.MonkeyPatch, *found: Any) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: list(found))


def test_of_both_families_an_agent_has_the_address_of_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve(monkeypatch, OF_IPV6, OF_IPV4)
    assert address_towards("http://rollyard.lab:8000") == ("127.0.0.1", "lo")


def test_where_there_is_ipv6_alone_an_agent_has_that(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve(monkeypatch, OF_IPV6)
    assert address_towards("http://rollyard.lab:8000") == ("::1", "lo")


def test_family_by_which_no_way_leads_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.socket.connect

    def without_ipv4(way: socket.socket, where: Any) -> None:
        if way.family == socket.AF_INET:
            raise OSError(101, "Network is unreachable")
        connect(way, where)

    monkeypatch.setattr(socket.socket, "connect", without_ipv4)
    resolve(monkeypatch, OF_IPV4, OF_IPV6)
    assert address_towards("http://rollyard.lab:8000") == ("::1", "lo")
    resolve(monkeypatch, OF_IPV4)
    with pytest.raises(OSError, match="unreachable"):
        address_towards("http://rollyard.lab:8000")


@pytest.mark.parametrize(
    "url", ["http://2001:db8::5:40123", "http://::1:40123", "http://[::1:4", "http:", "http://n:x"]
)
def test_what_is_no_address_is_told_from_a_node_that_is_away(url: str) -> None:
    with pytest.raises(NoAddress, match="its agent says that it listens at"):
        Node(url, "key")
