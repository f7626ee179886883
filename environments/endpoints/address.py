"""What is known of an endpoint, and which addresses one may have.

An administrator chooses the address, yet a slip must not hand a key to whoever listens on the way: without TLS an
endpoint is on this machine, or it has no key and a literal address of a private network.
"""

import ipaddress
from urllib.parse import urlsplit

import msgspec

MAX_URL = 500
LOCAL_NAMES = ("localhost",)


class ChatEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where one model is asked. The key itself is nowhere in it, only what names it."""

    name: str
    base_url: str
    """Up to what `/chat/completions` is appended to, such as `https://api.example.com/v1`; of a server of ours its
    socket (`unix://`)."""
    model: str
    """What the server calls the model."""
    key_reference: str = ""
    """See `environments.endpoints.keys`; empty: it wants none."""
    max_in_flight: int = 8
    """Requests that one process has there at a time."""
    timeout_s: float = 60.0
    """For one request."""


def fault_of(base_url: str, *, has_key: bool) -> str:
    """What is wrong with an endpoint's address, and how to mend it; empty: nothing."""
    if len(base_url) > MAX_URL or not base_url.isascii() or not base_url.isprintable() or " " in base_url:
        return f"must be a URL of up to {MAX_URL} visible ASCII characters"
    try:
        url = urlsplit(base_url)
        host, _ = url.hostname, url.port
    except ValueError:
        return "is no URL: write one such as https://api.example.com/v1"
    if url.scheme not in ("http", "https") or not host:
        return "must begin with https:// and a host, such as https://api.example.com/v1"
    if "@" in url.netloc or url.query or url.fragment:
        return "must be an address alone: no account, no query, no fragment. A key goes by --key"
    if base_url.rstrip("/").endswith("/chat/completions"):
        return "must end before /chat/completions, which is appended"
    literal = _literal(host)
    if literal is not None and (literal.is_link_local or literal.is_multicast or literal.is_unspecified):
        return f"{host} is no server's address: machines ask for their own secrets there"
    if url.scheme == "https" or host in LOCAL_NAMES or (literal is not None and literal.is_loopback):
        return ""
    if literal is None or not literal.is_private:
        return "must use https: without it only this machine and literal private addresses are asked"
    return "must use https, or go without a key: it would cross the network in the clear" if has_key else ""


def _literal(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found
