"""Pass HTTP requests on, byte for byte as they come: from a port to a socket of this node, or from a socket to a URL.

What runs in a sandbox has no network. An inference server listens on a socket, to which a door leads from the node's
address for those who know its key; a trainer asks the control plane over a socket, from which a door leads there.
"""

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType

import aiohttp
from aiohttp import web
from yarl import URL

from environments.client.address import address

_CONNECT_S = 10.0
_HOPS = frozenset(
    {
        "connection",
        "content-length",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers of one connection, not of a message (RFC 9110, section 7.6.1), and those that the next hop writes itself."""


Answers = Mapping[str, Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]]
"""What is answered here instead of behind a door, by how its path begins."""


@asynccontextmanager
async def to_socket(
    socket: Path | None, key: str, host: str, answers: Answers = MappingProxyType({})
) -> AsyncIterator[str]:
    """Open a port of `host` that leads to what listens on a socket; yields its URL. Asks for the key first."""
    async with _door(f"unix://{socket}" if socket else "", key=key, answers=answers) as runner:
        site = web.TCPSite(runner, host, 0)
        await site.start()
        _, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"


@asynccontextmanager
async def to_url(
    url: str, socket: Path, before: Callable[[web.BaseRequest, bytes], Awaitable[None]] | None = None
) -> AsyncIterator[None]:
    """Listen on a socket that leads to the API at a URL, and to nothing else there: the code of runs has no business
    with pages and passwords. Who may enter its directory may use it.

    `before`: is awaited with each request and its body, which then goes on.
    """
    async with _door(url, below="/api/", before=before) as runner, _at(socket, runner):
        yield


@asynccontextmanager
async def to_first_node(url: str, key: str, prefix: str, socket: Path) -> AsyncIterator[None]:
    """Listen on a socket that leads to what another door answers below a prefix, with its key."""
    async with _door(url, below=prefix, shows=key) as runner, _at(socket, runner):
        yield


@asynccontextmanager
async def to_answers(socket: Path, answers: Answers) -> AsyncIterator[None]:
    """Listen on a socket to what is answered here."""
    async with _door("", answers=answers) as runner, _at(socket, runner):
        yield


@asynccontextmanager
async def _at(socket: Path, runner: web.ServerRunner) -> AsyncIterator[None]:
    await web.UnixSite(runner, str(socket)).start()
    socket.chmod(0o666)
    yield


@asynccontextmanager
async def _door(
    url: str,
    *,
    key: str = "",
    shows: str = "",
    below: str = "/",
    answers: Answers = MappingProxyType({}),
    before: Callable[[web.BaseRequest, bytes], Awaitable[None]] | None = None,
) -> AsyncIterator[web.ServerRunner]:
    """`key`: is asked for; `shows`: is shown to who answers behind it."""
    root, socket = address(url)
    connector = aiohttp.UnixConnector(socket, limit=0) if socket else aiohttp.TCPConnector(limit=0)
    shown = {"Authorization": f"Bearer {shows}"} if shows else {}
    timeout = aiohttp.ClientTimeout(total=None, connect=_CONNECT_S)  # how long an answer may take is for who asks
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, auto_decompress=False, headers=shown
    ) as session:

        async def passed_on(request: web.BaseRequest) -> web.StreamResponse:
            if key and not _is_known(request, key):
                return web.Response(status=401, text="This needs the key of the replica.\n")
            if not request.path.startswith(below) or ".." in request.path:
                return web.Response(status=404)
            if own := next((answer for prefix, answer in answers.items() if request.path.startswith(prefix)), None):
                return await own(request)
            if not url:
                return web.Response(status=404)
            body = None
            if before is not None and request.method == "POST":
                body = await request.read()
                await before(request, body)
            return await _pass_on(request, session, root, body)

        runner = web.ServerRunner(web.Server(passed_on))
        await runner.setup()
        try:
            yield runner
        finally:
            await runner.cleanup()


def _is_known(request: web.BaseRequest, key: str) -> bool:
    given = request.headers.get("Authorization", "")
    return hmac.compare_digest(given.encode(errors="surrogateescape"), f"Bearer {key}".encode())


async def _pass_on(
    request: web.BaseRequest, session: aiohttp.ClientSession, root: str, read: bytes | None
) -> web.StreamResponse:
    headers = [(name, value) for name, value in request.headers.items() if name.lower() not in _HOPS]
    body = read if read is not None else request.content if request.body_exists else None
    if body is not None and request.content_length is not None:
        headers.append(("Content-Length", str(request.content_length)))
    try:
        answer = await session.request(
            request.method,
            URL(root + request.raw_path, encoded=True),  # as it came: nothing is written otherwise
            headers=headers,
            data=body,
            allow_redirects=False,
        )
    except (aiohttp.ClientConnectionError, TimeoutError) as error:
        return web.Response(status=502, text=f"Nobody answers behind this door: {type(error).__name__}\n")
    async with answer:
        passed = web.StreamResponse(status=answer.status, reason=answer.reason)
        passed.headers.extend((name, value) for name, value in answer.headers.items() if name.lower() not in _HOPS)
        if answer.content_length is not None:
            passed.content_length = answer.content_length
        await passed.prepare(request)
        async for chunk in answer.content.iter_any():
            await passed.write(chunk)
        await passed.write_eof()
    return passed
