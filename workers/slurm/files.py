"""The files of a job: what it and the shepherd in it have written in the directory of their replica."""

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from workers.launchers.base import End, Handle


class Written(NamedTuple):
    """What they say, as far as it can be read now."""

    exit: Mapping[str, Any] | None = None
    """How the command ended, by the shepherd."""
    exit_age_s: float | None = None
    """Since it wrote that."""
    end: End | None = None
    """Why the agent ended it; None where the command ended by itself, or has not."""
    was_stopped: bool = False
    """Whether we have asked it to end."""
    base_url: str = ""
    has_begun: bool = False
    is_spread: bool = False
    """Whether it is on several nodes, one of which may end it for another's sake."""
    heartbeat_at: float | None = None
    heartbeat_age_s: float | None = None
    silent_s: float | None = None
    """Since its heart beat, or, before that does, since its agent began; None before both."""


def read(handle: Handle) -> Written:
    """Read all of them."""
    exit_file = of(handle, "exit.json")
    why = of(handle, "why.json")
    described = of(handle, "job.json")
    heartbeat_at, heartbeat_age_s = _times(handle, "heartbeat")
    return Written(
        exit=exit_file,
        exit_age_s=None if exit_file is None else age_s(handle, "exit.json"),
        end=End(why["end"]) if why else None,
        was_stopped=(handle.directory / "stop").exists(),
        base_url=told_url(handle),
        has_begun=of(handle, "agent.json") is not None,
        is_spread=described is not None and described["nodes"] > 1,
        heartbeat_at=heartbeat_at,
        heartbeat_age_s=heartbeat_age_s,
        silent_s=age_s(handle, "agent.json") if heartbeat_age_s is None else heartbeat_age_s,
    )


def told_url(handle: Handle) -> str:
    """Where the agent of a job listens, as it says in its directory once it has begun; empty: it has not."""
    return str((of(handle, "agent.json") or {}).get("base_url", ""))


def of(handle: Handle, name: str) -> Mapping[str, Any] | None:
    """A file that a job wrote, if it is of this replica."""
    try:
        content: Mapping[str, Any] = json.loads((handle.directory / name).read_text())
    except (OSError, ValueError):
        return None
    return content if content.get("token") == handle.token else None


def age_s(handle: Handle, name: str) -> float | None:
    """How old a file is; None where that cannot be told now."""
    return _times(handle, name)[1]


def _times(handle: Handle, name: str) -> tuple[float, float] | tuple[None, None]:
    """When a file was written, and how long ago, by the clock of the file system that both machines write to: their own
    differ."""
    try:
        # Opened: else NFS says for up to a minute what it knows of a file that was not written for long.
        with (handle.directory / name).open() as file:
            written = os.fstat(file.fileno()).st_mtime
        now = handle.directory / "looked"
        now.touch()
        return written, max(0.0, now.stat().st_mtime - written)
    except OSError:
        return None, None
