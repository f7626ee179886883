"""The sessions that a gateway serves, by their keys."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from environments.session import Session

KEY_BYTES = 24


def new_key() -> str:
    """What nobody guesses: the right to play one session, and nothing else."""
    return secrets.token_urlsafe(KEY_BYTES)


@dataclass
class OpenSessions:
    """Sessions between their start and their end."""

    find_elsewhere: Callable[[str], Session | None] = lambda key: None
    """Asked for a key that is not among them."""
    _sessions: dict[str, Session] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, session: Session, key: str | None = None) -> str:
        """Serve a session; returns its key."""
        key = key or new_key()
        self._sessions[key] = session
        return key

    def find(self, key: str) -> Session | None:
        """The session of a key."""
        return self._sessions.get(key) or self.find_elsewhere(key)

    def close(self, key: str) -> None:
        """Serve it no longer. May be repeated."""
        self._sessions.pop(key, None)
