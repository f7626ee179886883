"""HTTP servers of tests: a handler on a local port while a block lasts, in threads, without a word."""

import socket
import socketserver
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """What every handler shares."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing: the default writes to stderr."""

    def answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        """Send a whole response; of a HEAD, its head."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class Server(ThreadingHTTPServer):
    """Does not complain of clients that went away: tests kill them."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Tell what went wrong in a handler, unless it is its client that is gone."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class LocalServer(Server):
    """Listens on a Unix socket, as what lives in a sandbox does."""

    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        """As for a port, without asking for the host's name."""
        socketserver.TCPServer.server_bind(self)

    def get_request(self) -> tuple[socket.socket, Any]:
        """A connection; its other end has no address."""
        connection, _ = self.socket.accept()
        return connection, ("", 0)


@contextmanager
def running(server: Server) -> Iterator[None]:
    """Let a server serve while the block lasts."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler], port: int = 0) -> Iterator[str]:
    """Serve on a local port while the block lasts; yields the base url."""
    server = Server(("127.0.0.1", port), handler)
    with running(server):
        yield server.url
