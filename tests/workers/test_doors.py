"""What passes a door, and what does not."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from tests.patience import PATIENCE
from workers import doors
from workers.depot import ANNOUNCEMENTS
from workers.nodes import Node


@asynccontextmanager
async def serving(
    socket: Path, answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
) -> AsyncIterator[None]:
    """A server on a socket, which notices who hangs up."""
    runner = web.ServerRunner(web.Server(answer, handler_cancellation=True))
    await runner.setup()
    await web.UnixSite(runner, str(socket)).start()
    try:
        yield
    finally:
        await runner.cleanup()


@asynccontextmanager
async def way_there(
    directory: Path, before: Callable[[bytes], Awaitable[None]]
) -> AsyncIterator[aiohttp.ClientSession]:
    """As a trainer has it to a server on a socket in a directory: by a door that holds announcements."""
    held = doors.Held(ANNOUNCEMENTS, before)
    async with (
        doors.to_url(f"unix://{directory / 's'}", directory / "way", held),
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(directory / "way"))) as session,
    ):
        yield session


async def until(look: Callable[[], bool]) -> None:
    async with asyncio.timeout(30 * PATIENCE):
        while not look():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def echo(socket: Path) -> AsyncIterator[list[web.BaseRequest]]:
    """A server on a socket that says what it was asked."""
    asked: list[web.BaseRequest] = []

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        asked.append(request)
        body = (await request.content.read()).decode()  # however long it is
        said = {"method": request.method, "path": request.raw_path, "body": body}
        return web.json_response(said | {"headers": dict(request.headers)}, status=207, headers={"X-Of-It": "yes"})

    async with serving(socket, answer):
        yield asked


def test_request_with_the_key_passes_as_it_is(tmp_path: Path) -> None:
    async def play() -> None:
        key = {"Authorization": "Bearer sesame", "X-Mine": "1"}
        async with (
            echo(tmp_path / "s") as asked,
            doors.to_socket(tmp_path / "s", "sesame", "127.0.0.1") as url,
            aiohttp.ClientSession() as session,
        ):
            async with session.post(URL(f"{url}/v1/x?a=b%2Fc", encoded=True), data=b"body", headers=key) as answer:
                said = await answer.json()
                assert (answer.status, answer.headers["X-Of-It"]) == (207, "yes")
            assert (said["method"], said["path"], said["body"]) == ("POST", "/v1/x?a=b%2Fc", "body")
            assert said["headers"]["X-Mine"] == "1"
            for wrong in ({}, {"Authorization": "Bearer sesame "[:-2]}, {"Authorization": "bearer sesame"}):
                async with session.post(f"{url}/v1/x", data=b"body", headers=wrong) as answer:
                    assert answer.status == 401
            assert len(asked) == 1, "what has no key is not passed on"

    asyncio.run(play())


def test_door_to_nobody_says_so(tmp_path: Path) -> None:
    async def play() -> None:
        key = {"Authorization": "Bearer k"}
        async with (
            doors.to_socket(tmp_path / "nobody", "k", "127.0.0.1") as url,
            aiohttp.ClientSession() as session,
            session.get(url, headers=key) as answer,
        ):
            assert answer.status == 502

    asyncio.run(play())


def test_door_to_the_control_plane_leads_to_its_api_alone(tmp_path: Path) -> None:
    async def play() -> None:
        seen: list[bytes] = []

        async def before(body: bytes) -> None:
            seen.append(body)

        async with echo(tmp_path / "s") as asked, way_there(tmp_path, before) as session:
            announced = json.dumps({"path": "/weights/step_1"}).encode()
            async with session.post("http://x/api/v1/runs/a/policy-versions", data=announced) as answer:
                assert (await answer.json())["body"] == announced.decode()
            assert seen == [announced]
            for path in ("/", "/login/", "/admin/", "/ws/runs/a", "/apis", "/api/../login/"):
                async with session.get(f"http://x{path}") as answer:
                    assert answer.status == 404, path
            assert len(asked) == 1

    asyncio.run(play())


def test_announcement_waits_for_what_goes_before_it(tmp_path: Path) -> None:
    async def play() -> None:
        fetched, order = asyncio.Event(), list[str]()

        async def before(_body: bytes) -> None:
            await fetched.wait()
            order.append("fetched")

        async def announce(session: aiohttp.ClientSession) -> None:
            await session.post("http://x/api/v1/checkpoints", data=b"{}")
            order.append("announced")

        async with echo(tmp_path / "s"), way_there(tmp_path, before) as session:
            asking = asyncio.create_task(announce(session))
            await asyncio.sleep(0)
            fetched.set()
            await asking
        assert order == ["fetched", "announced"]

    asyncio.run(play())


def test_announcement_outlives_whoever_made_it(tmp_path: Path) -> None:
    """What was fetched for it would belong to nobody."""

    async def play() -> None:
        begun, fetched = asyncio.Event(), asyncio.Event()

        async def before(_body: bytes) -> None:
            begun.set()
            await fetched.wait()

        async with echo(tmp_path / "s") as asked, way_there(tmp_path, before) as session:
            asking = asyncio.create_task(_read(session, "http://x/api/v1/checkpoints"))
            await begun.wait()
            asking.cancel()
            await asyncio.sleep(0.2)
            fetched.set()
            await until(lambda: len(asked) == 1)

    asyncio.run(play())


def test_what_a_trainer_says_may_be_as_long_as_the_control_plane_takes_it(tmp_path: Path) -> None:
    async def play() -> None:
        seen: list[bytes] = []
        long = b"x" * 3 * 2**20

        async def before(body: bytes) -> None:
            seen.append(body)

        async with echo(tmp_path / "s"), way_there(tmp_path, before) as session:
            for path, held in (("steps/7", []), ("policy-versions", [long])):
                async with session.post(f"http://x/api/v1/runs/a/{path}", data=long) as answer:
                    assert answer.status == 207, path
                    assert (await answer.json())["body"] == long.decode()
                assert seen == held

    asyncio.run(play())


def test_what_is_no_announcement_passes_as_it_comes(tmp_path: Path) -> None:
    async def play() -> None:
        arrived = asyncio.Event()

        async def before(_body: bytes) -> None:
            raise AssertionError("this is for announcements")

        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            await request.content.readany()
            arrived.set()
            return web.Response(text=str(len(await request.content.read())))

        async def body() -> AsyncIterator[bytes]:
            yield b"first"
            await arrived.wait()
            yield b"and the rest"

        async with (
            serving(tmp_path / "s", answer),
            way_there(tmp_path, before) as session,
            asyncio.timeout(30 * PATIENCE),
            session.post("http://x/api/v1/runs/a/steps/7", data=body()) as said,
        ):
            assert int(await said.text()) == len(b"and the rest")

    asyncio.run(play())


@pytest.mark.parametrize("streams", [False, True])
def test_client_that_hangs_up_ends_its_request_behind_the_door(tmp_path: Path, streams: bool) -> None:
    """Else a server goes on generating for nobody."""

    async def play() -> None:
        asked, ended = asyncio.Event(), asyncio.Event()

        async def generate(request: web.BaseRequest) -> web.StreamResponse:
            await request.content.read()
            answer = web.StreamResponse()
            if streams:
                await answer.prepare(request)
                await answer.write(b"data: a token")
            asked.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.set()
                raise
            return answer

        async with (
            serving(tmp_path / "s", generate),
            doors.to_socket(tmp_path / "s", "k", "127.0.0.1") as url,
            aiohttp.ClientSession(headers={"Authorization": "Bearer k"}) as session,
        ):
            asking = asyncio.create_task(_read(session, f"{url}/v1/completions"))
            await asked.wait()
            assert not ended.is_set()
            asking.cancel()
            async with asyncio.timeout(30 * PATIENCE):
                await ended.wait()

    asyncio.run(play())


async def _read(session: aiohttp.ClientSession, url: str) -> bytes:
    async with session.post(url, data=b"{}") as answer:
        return await answer.read()


def test_what_is_answered_at_a_door_goes_on_when_a_client_hangs_up(tmp_path: Path) -> None:
    async def play() -> None:
        asked, goes_on, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def arrived(_request: web.BaseRequest) -> web.StreamResponse:
            asked.set()
            await goes_on.wait()
            ended.set()
            return web.Response()

        async with doors.to_socket(None, "k", "127.0.0.1", {"/depot/": arrived}) as url:
            async with aiohttp.ClientSession(headers={"Authorization": "Bearer k"}) as session:
                asking = asyncio.create_task(_read(session, f"{url}/depot/arrived"))
                await asked.wait()
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
            await asyncio.sleep(0.2)
            goes_on.set()
            async with asyncio.timeout(30 * PATIENCE):
                await ended.wait()

    asyncio.run(play())


def test_door_at_an_address_of_ipv6_says_where_it_is_as_a_url_does() -> None:
    async def play() -> None:
        async def answer(_request: web.BaseRequest) -> web.StreamResponse:
            return web.Response(text="here")

        key = {"Authorization": "Bearer k"}
        async with (
            doors.to_socket(None, "k", "::1", {"/": answer}) as url,
            aiohttp.ClientSession() as session,
            session.get(url, headers=key) as said,
        ):
            assert await said.text() == "here"
            node = Node(url, "k")
            assert await asyncio.to_thread(node.ask, "GET", "brought") == b"here"
            node.close()

    asyncio.run(play())
