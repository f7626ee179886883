"""The sessions that a gateway serves, by their keys."""

import secrets
from typing import Protocol

from environments.session import Session

KEY_BYTES = 24


def new_key() -> str:
    """What nobody guesses: the right to play one session, and nothing else."""
    return secrets.token_urlsafe(KEY_BYTES)


class Sessions(Protocol):
    """What an app asks for the session of a key."""

    async def find(self, key: str) -> Session | None:
        """The session of a key, while it may be played."""
        ...


class OpenSessions:
    """Sessions between their start and their end."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, session: Session) -> str:
        """Serve a session; returns its key."""
        key = new_key()
        self._sessions[key] = session
        return key

    async def find(self, key: str) -> Session | None:
        return self._sessions.get(key)

    def close(self, key: str) -> None:
        """Serve it no longer. May be repeated."""
        self._sessions.pop(key, None)
