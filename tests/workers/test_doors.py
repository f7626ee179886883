"""What passes a door, and what does not."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from aiohttp import web
from yarl import URL

from workers import doors


@asynccontextmanager
async def echo(socket: Path) -> AsyncIterator[list[web.BaseRequest]]:
    """A server on a socket that says what it was asked."""
    asked: list[web.BaseRequest] = []

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        asked.append(request)
        said = {"method": request.method, "path": request.raw_path, "body": (await request.read()).decode()}
        return web.json_response(said | {"headers": dict(request.headers)}, status=207, headers={"X-Of-It": "yes"})

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    await web.UnixSite(runner, str(socket)).start()
    try:
        yield asked
    finally:
        await runner.cleanup()


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
        seen: list[tuple[str, bytes]] = []

        async def before(request: web.BaseRequest, body: bytes) -> None:
            seen.append((request.path, body))

        async with (
            echo(tmp_path / "s") as asked,
            doors.to_url(f"unix://{tmp_path / 's'}", tmp_path / "way", before),
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(tmp_path / "way"))) as session,
        ):
            announced = json.dumps({"path": "/weights/step_1"}).encode()
            async with session.post("http://x/api/v1/runs/a/policy-versions", data=announced) as answer:
                assert (await answer.json())["body"] == announced.decode()
            assert seen == [("/api/v1/runs/a/policy-versions", announced)]
            for path in ("/", "/login/", "/admin/", "/ws/runs/a", "/apis", "/api/../login/"):
                async with session.get(f"http://x{path}") as answer:
                    assert answer.status == 404, path
            assert len(asked) == 1

    asyncio.run(play())


def test_announcement_waits_for_what_goes_before_it(tmp_path: Path) -> None:
    async def play() -> None:
        fetched, order = asyncio.Event(), list[str]()

        async def before(_request: web.BaseRequest, _body: bytes) -> None:
            await fetched.wait()
            order.append("fetched")

        async def announce(ask: Callable[[], Awaitable[object]]) -> None:
            await ask()
            order.append("announced")

        async with (
            echo(tmp_path / "s"),
            doors.to_url(f"unix://{tmp_path / 's'}", tmp_path / "way", before),
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(tmp_path / "way"))) as session,
        ):
            asking = asyncio.create_task(announce(lambda: session.post("http://x/api/v1/checkpoints", data=b"{}")))
            await asyncio.sleep(0)
            fetched.set()
            await asking
        assert order == ["fetched", "announced"]

    asyncio.run(play())
