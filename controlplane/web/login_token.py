"""The secret inside a login link. Apart from `login.py` because `rollyard up` makes one before Django is loaded."""

import hashlib
import secrets


def new() -> str:
    """Return a fresh secret: 256 random bits, so that there is nothing to sign and nothing to guess."""
    return secrets.token_urlsafe(32)


def digest(token: str) -> str:
    """Return what the database keeps of a secret."""
    return hashlib.sha256(token.encode()).hexdigest()
