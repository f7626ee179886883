"""A server of the OpenAI chat API, whose answers a test chooses."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests import http_server

Reply = dict[str, Any] | bytes | str | int | float | tuple[int, bytes]
"""The body; a string is what the model says, a number a status, a fraction seconds it hangs for; status and body."""


class ChatServer:
    """Answers every request with `reply(body)`, and keeps what it was asked."""

    def __init__(self, reply: Callable[[dict[str, Any]], Reply]) -> None:
        self.reply = reply
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.most_at_a_time = 0
        self.base_url = ""


@contextmanager
def serving(reply: Callable[[dict[str, Any]], Reply]) -> Iterator[ChatServer]:
    """Serve while the block lasts."""
    server, inside = ChatServer(reply), [0]

    class Handler(http_server.Handler):
        def do_POST(self) -> None:
            inside[0] += 1
            server.most_at_a_time = max(server.most_at_a_time, inside[0])
            try:
                self._answer()
            finally:
                inside[0] -= 1

        def _answer(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.asked.append(body)
            server.headers.append(dict(self.headers))
            server.paths.append(self.path)
            said = server.reply(body)
            if isinstance(said, float):
                time.sleep(said)
                said = "late"
            if isinstance(said, tuple):
                return self.answer(said[0], said[1])
            if isinstance(said, int):
                where = {"Location": f"{server.base_url}/elsewhere"} if 300 <= said < 400 else {}
                return self.answer(said, json.dumps({"error": {"message": f"status {said}"}}).encode(), where)
            if isinstance(said, str):
                said = completion(said)
            self.answer(200, said if isinstance(said, bytes) else json.dumps(said).encode())

    with http_server.serving(Handler) as url:
        server.base_url = f"{url}/v1"
        yield server


def completion(content: str | None, **message: Any) -> dict[str, Any]:
    """A whole answer."""
    said = {"role": "assistant", "content": content, **message}
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    return {"id": "1", "choices": [{"index": 0, "message": said, "finish_reason": "stop"}], "usage": usage}
