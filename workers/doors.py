"""Pass HTTP requests on, byte for byte as they come: from a port to a socket of this node, or from a socket to a URL.

What runs in a sandbox has no network. An inference server listens on a socket, to which a door leads from the node's
address for those who know its key; a trainer asks the control plane over a socket, from which a door leads there.
"""

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import aiohttp
from aiohttp import web
from yarl import URL

from environments.client.address import address

_CONNECT_S = 10.0
_LEAVE_S = 10.0
"""For which a door that is closed waits for what goes on although nobody waits for its answer."""
_WHOLE_BYTES = 64 * 2**20
"""Of a request that is read whole: what the control plane takes, unless it was told otherwise."""
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


class Held(NamedTuple):
    """What is read whole and goes on only after something else, also where whoever asked has hung up by then."""

    ends: tuple[str, ...]
    """Of their paths."""
    before: Callable[[bytes], Awaitable[None]]
    """Is awaited with the body of each."""

    def holds(self, request: web.BaseRequest) -> bool:
        """Whether this is one of them."""
        return request.method == "POST" and request.path.endswith(self.ends)


async def read_whole(request: web.BaseRequest) -> bytes:
    """The body of a request that may be as large as the control plane takes one. Raises HTTPRequestEntityTooLarge."""
    return await request.clone(client_max_size=_WHOLE_BYTES).read()


@asynccontextmanager
async def to_socket(
    socket: Path | None, key: str, host: str, answers: Answers = MappingProxyType({})
) -> AsyncIterator[str]:
    """Open a port of `host` that leads to what listens on a socket; yields its URL. Asks for the key first."""
    async with _door(f"unix://{socket}" if socket else "", key=key, answers=answers) as runner:
        site = web.TCPSite(runner, host, 0)
        await site.start()
        _, port = runner.addresses[0][:2]
        yield f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@asynccontextmanager
async def to_url(url: str, socket: Path, held: Held | None = None) -> AsyncIterator[None]:
    """Listen on a socket that leads to the API at a URL, and to nothing else there: the code of runs has no business
    with pages and passwords. Who may enter its directory may use it."""
    async with _door(url, below="/api/", held=held) as runner, _at(socket, runner):
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
    held: Held | None = None,
) -> AsyncIterator[web.ServerRunner]:
    """`key`: is asked for; `shows`: is shown to who answers behind it.

    Whoever hangs up ends what was asked behind the door: a server would go on generating for nobody. What is answered
    here and what is held goes on to its end: files are between two names, or were fetched for nothing.
    """
    root, socket = address(url)
    connector = aiohttp.UnixConnector(socket, limit=0) if socket else aiohttp.TCPConnector(limit=0)
    shown = {"Authorization": f"Bearer {shows}"} if shows else {}
    timeout = aiohttp.ClientTimeout(total=None, connect=_CONNECT_S)  # how long an answer may take is for who asks
    going_on = _GoingOn()
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, auto_decompress=False, headers=shown
    ) as session:

        async def hold(request: web.BaseRequest, held: Held) -> web.StreamResponse:
            body = await read_whole(request)
            await held.before(body)
            return await _pass_on(request, session, root, body)

        async def passed_on(request: web.BaseRequest) -> web.StreamResponse:
            if key and not _is_known(request, key):
                return web.Response(status=401, text="This needs the key of the replica.\n")
            if not request.path.startswith(below) or ".." in request.path:
                return web.Response(status=404)
            if own := next((answer for prefix, answer in answers.items() if request.path.startswith(prefix)), None):
                return await going_on.to_its_end(own(request))
            if not url:
                return web.Response(status=404)
            if held is not None and held.holds(request):
                return await going_on.to_its_end(hold(request, held))
            return await _pass_on(request, session, root, None)

        runner = web.ServerRunner(web.Server(passed_on, handler_cancellation=True))
        await runner.setup()
        try:
            yield runner
        finally:
            await runner.cleanup()
            await going_on.close()


class _GoingOn:
    """What goes on to its end, although whoever asked may have hung up."""

    def __init__(self) -> None:
        self._tasks = set[asyncio.Future[web.StreamResponse]]()

    async def to_its_end(self, work: Awaitable[web.StreamResponse]) -> web.StreamResponse:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Wait a while for what is not done yet, then end it."""
        tasks = tuple(self._tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=_LEAVE_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


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
