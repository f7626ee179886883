"""One keep-alive HTTP/1.1 connection on a bare socket: the client must cost less than the server it measures."""

import json
import socket
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

SUCCESS = frozenset({200, 201})


class Address(NamedTuple):
    """Where a server listens, and what every path of it begins with."""

    host: str
    port: int
    prefix: str = ""

    @classmethod
    def of(cls, url: str) -> Self:
        """The address of an http URL. Raises SystemExit for any other scheme."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise SystemExit(f"{url!r} is no http URL with a host")
        return cls(parts.hostname, parts.port or 80, parts.path.rstrip("/"))

    def url(self, path: str) -> str:
        """Of a path, for other clients."""
        return f"http://{self.host}:{self.port}{self.prefix}{path}"

    def head(self, method: str, path: str, headers: dict[str, str] | None = None, length: int | None = None) -> bytes:
        """The request up to its body; ``length`` is that of the body in bytes, None when there is none."""
        lines = [f"{method} {self.prefix}{path} HTTP/1.1", f"Host: {self.host}:{self.port}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        lines += [] if length is None else [f"Content-Length: {length}"]
        return "\r\n".join([*lines, "", ""]).encode()


class Answer(NamedTuple):
    """What the server sent, with the body as it came over the wire."""

    status: int
    headers: dict[bytes, bytes]
    """Names in lower case."""
    body: bytes

    def json(self) -> Any:
        """The body, which must not be compressed, as JSON."""
        return json.loads(self.body)


class Connection:
    """Requests one after the other. Connects at the first one, and anew after the server closed."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None

    def connect(self) -> None:
        """Open the socket unless it is open."""
        if self._socket is None:
            self._socket = socket.create_connection(self._address[:2], self._timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._reader = self._socket.makefile("rb", buffering=1 << 16)

    def renew(self) -> None:
        """Be freshly connected: servers close a connection that was idle for seconds."""
        self.close()
        self.connect()

    def close(self) -> None:
        """Close the socket if it is open."""
        if self._socket is not None:
            self._reader.close()
            self._socket.close()
            self._socket = None

    def exchange(self, request: bytes | bytearray) -> Answer:
        """Send the bytes of a request and read the whole answer. Raises OSError when there is none in time."""
        self.connect()
        assert self._socket is not None
        try:
            self._socket.sendall(request)
            answer = self._read()
        except OSError:
            self.close()
            raise
        if answer.headers.get(b"connection") == b"close":
            self.close()
        return answer

    def call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        """One call outside of any timing: ``body`` goes as JSON. Raises SystemExit when the answer is no success."""
        sent = b"" if body is None else json.dumps(body).encode()
        told = {**({} if body is None else {"Content-Type": "application/json"}), **(headers or {})}
        length = len(sent) if method == "POST" else None
        answer = self.exchange(self._address.head(method, path, told, length) + sent)
        if answer.status not in SUCCESS:
            raise SystemExit(f"{method} {path} answered {answer.status}: {answer.body[:500]!r}")
        return answer

    def _read(self) -> Answer:
        line = self._reader.readline()
        if not line:
            raise ConnectionError("the server closed the connection instead of answering")
        headers = {}
        while (header := self._reader.readline()) not in {b"\r\n", b""}:
            name, _, value = header.partition(b":")
            headers[name.lower()] = value.strip()
        if b"content-length" in headers:
            body = self._exactly(int(headers[b"content-length"]))
        elif headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            body = self._chunks()
        else:
            body = b""
        return Answer(int(line.split(None, 2)[1]), headers, body)

    def _chunks(self) -> bytes:
        chunks = []
        while size := int(self._reader.readline().split(b";")[0], 16):
            chunks.append(self._exactly(size))
            self._reader.readline()
        while self._reader.readline() not in {b"\r\n", b""}:
            pass  # trailers
        return b"".join(chunks)

    def _exactly(self, length: int) -> bytes:
        body: bytes = self._reader.read(length)
        if len(body) < length:
            raise ConnectionError(f"the answer ended after {len(body)} of {length} bytes")
        return body
