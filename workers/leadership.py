"""Elect one leader among processes: an advisory lock of Postgres, held by a connection of its own.

The lock is gone with the connection, so a leader that dies is replaced as soon as Postgres notices. It needs a session:
behind PgBouncer in transaction mode it does not work.
"""

import psycopg
from django.db import connections

_KEY = 0x526F6C6C79617264
"""Any number nobody else locks: "Rollyard"."""
_NOTICED = "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=4 -c tcp_user_timeout=30s"
"""Over TCP, Postgres notices within half a minute that the leader's machine is gone; by itself after two hours."""


class Leadership:
    """Being the leader, or waiting to become it. Not for several threads at once."""

    def __init__(self) -> None:
        self._connection: psycopg.Connection | None = None

    def acquire(self) -> bool:
        """Try to become the leader; False when another process is. Raises psycopg.Error when Postgres is away."""
        self.release()
        parameters = connections["default"].get_connection_params()
        keep = {key: value for key, value in parameters.items() if key not in {"cursor_factory", "context"}}
        keep["options"] = f"{_NOTICED} {keep.get('options', '')}"  # what the URL says comes last, and holds
        self._connection = psycopg.connect(**keep, autocommit=True)
        row = self._connection.execute("SELECT pg_try_advisory_lock(%s)", [_KEY]).fetchone()
        if row and row[0]:
            return True
        self.release()
        return False

    def holds(self) -> bool:
        """Whether the session that holds the lock is still there."""
        if self._connection is None:
            return False
        try:
            self._connection.execute("SELECT 1")
        except psycopg.Error:
            self.release()
            return False
        return True

    def release(self) -> None:
        """Give the lock back."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
