"""The server of an environment of OpenEnv, on the loopback of the process that plays it.

A room has no network, so what is behind a server elsewhere has to be in it. In a thread the server ends with the
process, however that ends.
"""

import logging
import socket
import threading
import time
from importlib import import_module
from typing import Any

_START_DEADLINE_S = 60.0


def serve(app: Any, *, factory: bool) -> str:
    """Serve an ASGI application on the loopback, in a thread of this process and as long as it; return its address.

    Raises ValueError when it does not start.
    """
    uvicorn = import_module("uvicorn")
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, factory=factory, log_level="warning"))
    # Else every episode that ends leaves sixty lines of traceback, and the last words of this process are nothing else.
    logging.getLogger("uvicorn.error").addFilter(_is_no_goodbye)
    thread = threading.Thread(target=server.run, args=([listener],), name="openenv-server", daemon=True)
    thread.start()
    give_up_at = time.monotonic() + _START_DEADLINE_S
    while not server.started:
        if not thread.is_alive() or time.monotonic() > give_up_at:
            raise ValueError("the application of the environment did not start: what it wrote to stderr says why")
        thread.join(0.01)
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


def _is_no_goodbye(record: logging.LogRecord) -> bool:
    """Whether it is anything but OpenEnv's server hanging up on a client that has hung up."""
    return not (record.exc_info and type(record.exc_info[1]).__name__ == "WebSocketDisconnect")
