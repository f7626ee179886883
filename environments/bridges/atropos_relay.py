"""The address an Atropos environment plays at: takes its requests for many replies apart, one for each session.

    collect_trajectories ──n = 4──▶ relay ──n = 1──▶ the sessions of the group ──▶ gateway

Lives in the environment's own process. The API key says which group asks. What a session answers is passed on as it is.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector, web

from environments.bridges.atropos_table import GroupTable, JsonObject, NoSeat, Prompt, Reply, Seat, said, text_of

_MAX_BODY_BYTES = 32 * 2**20


class _Refusal(Exception):
    """An answer that is no reply."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(body.decode(errors="replace"))
        self.status = status
        self.body = body


class _Asked(NamedTuple):
    """A request for replies."""

    path: str
    """Behind the session's address."""
    body: JsonObject
    """For one reply."""
    prompt: Prompt
    n: int

    @property
    def fingerprint(self) -> str:
        """The same for the same request."""
        return json.dumps([self.path, self.body], sort_keys=True)


class Relay:
    """Serves the groups that are open."""

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        """`encode` makes tokens of a prompt that is text."""
        self.base_url = ""
        self._encode = encode
        self._tables: dict[str, GroupTable] = {}
        self._client: ClientSession | None = None

    async def start(self) -> None:
        """Serve on the running event loop, at a port of the loopback; writes `base_url`."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_get("/health", _healthy)
        app.router.add_get("/v1/models", _models)
        for path in ("/generate", "/v1/chat/completions", "/v1/completions"):
            app.router.add_post(path, self._answer)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self._client = ClientSession(timeout=ClientTimeout(total=None), connector=TCPConnector(limit=0))
        self.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"

    def open(self, table: GroupTable) -> None:
        """Serve a group."""
        self._tables[table.key] = table

    def close(self, table: GroupTable) -> None:
        """Serve it no longer."""
        self._tables.pop(table.key, None)

    async def _answer(self, request: web.Request) -> web.Response:
        table = None
        try:
            table, task = self._find(request)
            replies = await self._replies(table, _read(request.path, await request.json(), self._encode), task)
            return web.json_response(_merged(request.path, replies))
        except _Refusal as refusal:
            if table is not None:
                table.refusals.append(str(refusal))
            return web.Response(status=refusal.status, body=refusal.body, content_type="application/json")

    def _find(self, request: web.Request) -> tuple[GroupTable, int]:
        key, _, task = request.headers.get("Authorization", "").removeprefix("Bearer ").partition(".")
        table = self._tables.get(key)
        if table is not None:
            return table, int(task) if task.isdecimal() else 0
        if len(self._tables) != 1:
            why = "Nothing says which group asks: read api_key of the server's config in the task that plays."
            raise _refusal(401, "unknown_group", why)
        # What asks from outside of the task, a thread of its own for example, can only mean the one that is played.
        return next(iter(self._tables.values())), 0

    async def _replies(self, table: GroupTable, asked: _Asked, task: int) -> list[Reply]:
        spare = table.spare[asked.fingerprint]
        done = [spare.pop() for _ in range(min(asked.n, len(spare)))]
        try:
            taken = table.take(asked.prompt, asked.n - len(done), task) if len(done) < asked.n else []
        except NoSeat as error:
            spare += done
            raise _refusal(400, "no_rollout", str(error)) from None
        asking = [asyncio.ensure_future(self._ask(seat, parent, asked)) for seat, parent in taken]
        try:
            await asyncio.gather(*asking)
        except BaseException:
            for each in asking:
                each.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            finished = [each for each in asking if not each.cancelled() and each.exception() is None]
            spare += [*done, *(each.result() for each in finished)]
            raise
        finally:
            for seat, _ in taken:
                seat.asked -= 1
        return [reply for _, reply in (*done, *(each.result() for each in asking))]

    async def _ask(self, seat: Seat, parent: Reply | None, asked: _Asked) -> tuple[Seat, Reply]:
        assert self._client is not None
        try:
            url = seat.base_url.removesuffix("/v1") + asked.path
            async with self._client.post(url, json=asked.body) as response:
                body = await response.read()
        except ClientError as error:
            raise _refusal(503, "policy_unavailable", f"{type(error).__name__}: {error}") from error
        if response.status != 200:
            raise _Refusal(response.status, body)
        reply = _reply(asked, json.loads(body), parent)
        seat.replies.append(reply)
        return seat, reply


def _read(path: str, body: Any, encode: Callable[[str], list[int]]) -> _Asked:
    """A request, of one of three forms. Raises _Refusal."""
    if not isinstance(body, dict):
        raise _refusal(400, "invalid_request", "a request is an object")
    n = body.pop("n", None) or 1
    if body.get("prompt_logprobs") is not None:
        raise _refusal(400, "no_prompt_logprobs", "get_logprobs is not served: the policy says nothing about prompts.")
    if body.get("stream"):
        raise _refusal(400, "no_stream", "stream is not served to Atropos environments.")
    try:
        if path == "/v1/chat/completions":
            prompt = said(body["messages"])
            body["logprobs"] = True
        elif path == "/generate":
            prompt = tuple(body["prompt"]["prompt_token_ids"])
        else:
            text_or_tokens = body["prompt"]
            body["prompt"] = encode(text_or_tokens) if isinstance(text_or_tokens, str) else text_or_tokens
            prompt = tuple(body["prompt"])
    except (KeyError, TypeError, AttributeError) as error:
        raise _refusal(400, "invalid_request", f"{path}: {type(error).__name__}: {error}") from None
    return _Asked(path, body, prompt, int(n))


def _reply(asked: _Asked, answer: JsonObject, parent: Reply | None) -> Reply:
    if asked.path == "/generate":
        token_ids = [int(next(iter(position[0]))) for position in answer["logprobs"][0]]
        return Reply(parent, (*asked.prompt, *token_ids), token_ids, answer["text"][0], answer)
    choice = answer["choices"][0]
    if asked.path == "/v1/completions":
        return Reply(parent, (*asked.prompt, *choice["token_ids"]), choice["token_ids"], choice["text"], answer)
    token_ids = [each["token_id"] for each in choice["logprobs"]["content"]]
    message = choice["message"]
    whole = (*asked.prompt, *said([message]))
    return Reply(parent, whole, token_ids, text_of(message.get("content")), answer)


def _merged(path: str, replies: list[Reply]) -> JsonObject:
    """The answers for one reply each as one for all."""
    first = replies[0].answer
    if path == "/generate":
        return {key: [one for reply in replies for one in reply.answer[key]] for key in first}
    choices = [reply.answer["choices"][0] | {"index": number} for number, reply in enumerate(replies)]
    usage = {key: sum(reply.answer["usage"][key] for reply in replies) for key in _USAGE}
    return first | {"choices": choices, "usage": usage}


_USAGE = ("prompt_tokens", "completion_tokens", "total_tokens")


def _refusal(status: int, code: str, message: str) -> _Refusal:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return _Refusal(status, json.dumps({"error": {"message": message, "type": kind, "code": code}}).encode())


async def _healthy(request: web.Request) -> web.Response:
    return web.Response()


async def _models(request: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [{"id": "policy", "object": "model"}]})
