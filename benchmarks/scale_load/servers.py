"""Stub replicas: servers with vLLM's routes and no model, all in one process, a socket each.

    python -m benchmarks.scale_load.servers      reads paths of sockets from stdin, a line each, until it is closed

They generate one token, are labelled, paused, and told to load, as long as each takes on a GPU.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

GENERATES_S = 0.03
LOADS_S = 0.5


class StubReplica:
    """The state of one."""

    def __init__(self) -> None:
        self._label = "none"
        self._is_paused = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, and hang up, as who asks wants it."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            target = head.split(" ", 2)[1]
            lengths = [line.split(":")[1] for line in head.splitlines() if line.lower().startswith("content-length:")]
            body = await reader.readexactly(int(lengths[0])) if lengths else b""
            content = json.dumps(await self._answer(target.split("?")[0], body)).encode()
            told = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n"
            writer.write(f"{told}Connection: close\r\n\r\n".encode() + content)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, path: str, body: bytes) -> dict[str, Any]:
        match path:
            case "/weight_info":
                return {"weight_version": self._label}
            case "/is_paused":
                return {"is_paused": self._is_paused}
            case "/update_weight_version":
                self._label = json.loads(body)["new_version"]
            case "/pause" | "/resume":
                self._is_paused = path == "/pause"
            case "/collective_rpc":
                await asyncio.sleep(LOADS_S)
            case "/reset_prefix_cache":
                return {"success": True}
            case "/inference/v1/generate":
                await asyncio.sleep(GENERATES_S)
                return {"choices": [{"token_ids": [7], "finish_reason": "stop"}]}
        return {}


async def _main() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    serving = []
    while line := (await reader.readline()).decode().strip():
        Path(line).parent.mkdir(parents=True, exist_ok=True)
        serving.append(await asyncio.start_unix_server(StubReplica().serve, line))


if __name__ == "__main__":
    asyncio.run(_main())
