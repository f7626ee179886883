"""An inference server without a model, as cheap as it can be: `python -m benchmarks.gateway_load.engine PORT`.

Answers `/inference/v1/generate` with so many tokens as are asked for, at once. Prints its port when it listens.
"""

import argparse
import asyncio
import socket
from typing import Any

import msgspec
import uvicorn


class _Sampling(msgspec.Struct):
    n: int = 1
    max_tokens: int = 16


class _Asked(msgspec.Struct):
    token_ids: list[int]
    sampling_params: _Sampling


_decode = msgspec.json.Decoder(_Asked).decode


async def engine(scope: Any, receive: Any, send: Any) -> None:
    """The ASGI application."""
    body, more = b"", True
    while more:
        event = await receive()
        body += event.get("body", b"")
        more = event.get("more_body", False)
    wanted = _decode(body).sampling_params
    token_ids = [*range(97, 97 + wanted.max_tokens - 1), 2]
    choice = {
        "token_ids": token_ids,
        "text": "said",
        "finish_reason": "stop",
        "logprobs": {"content": [{"logprob": -0.5} for _ in token_ids]},
        "weight_versions": [{"version": "3"}],
    }
    answer = msgspec.json.encode({"choices": [choice] * wanted.n})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


def main() -> None:
    """Serve until it is killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(engine, log_config=None, access_log=False, lifespan="off")
    asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))


if __name__ == "__main__":
    main()
