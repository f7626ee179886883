"""Ears of workers: a subscription to the bell of a run for each, whose messages are read and dropped in bulk.

python -m benchmarks.scale_load.ears RUN 500
"""

import os
import selectors
import sys
import threading
import time
from typing import Any

import django

from benchmarks.scale_load.programs import answer

_PAUSE_S = 0.1


class Ears:
    """Connections to Redis."""

    def __init__(self, channel: str, count: int) -> None:
        import redis
        from django.conf import settings

        self._pool = redis.ConnectionPool.from_url(settings.REDIS_URL, protocol=2, max_connections=count)
        self._sockets = selectors.DefaultSelector()
        self._connections = []
        for _ in range(count):
            connection: Any = self._pool.get_connection()
            connection.send_command("SUBSCRIBE", channel)
            connection.read_response()
            connection._sock.setblocking(False)
            self._sockets.register(connection._sock, selectors.EVENT_READ)
            self._connections.append(connection)
        self.heard = 0

    def listen(self, ending: threading.Event) -> None:
        """Read until told to end."""
        while not ending.is_set():
            for key, _ in self._sockets.select(timeout=_PAUSE_S):
                self.heard += len(os.read(key.fd, 2**20))
            time.sleep(_PAUSE_S)  # in bulk: what is measured is who sends

    def told(self) -> dict[str, Any]:
        """Bytes heard since the last time."""
        heard, self.heard = self.heard, 0
        return {"heard_bytes": heard}


def main() -> None:
    django.setup()
    from rollouts import bell

    ears = Ears(f"asgi__group__{bell.group_of(sys.argv[1])}", int(sys.argv[2]))
    ending = threading.Event()
    threading.Thread(target=answer, args=({"told": ears.told}, ending), daemon=True).start()
    ears.listen(ending)


if __name__ == "__main__":
    main()
