"""What every launcher does: start a replica's process, watch it, end it, show its log.

A launcher keeps nothing in memory. A handle is rebuilt from the replica's row, so a reconciler that was restarted goes
on watching the processes of the one before it.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

JOB_VARIABLE = "ROLLYARD_JOB"
"""Of the environment of a job: what of a `LaunchSpec` must not be written into a file."""


class LaunchError(Exception):
    """The process could not be started; the message says why."""


class LauncherAway(LaunchError):
    """Whoever starts processes there does not answer: that says nothing about what was to be started."""


@dataclass(frozen=True)
class JobSize:
    """What a process wants of the node it runs on, where that is chosen for it."""

    cores: int = 0
    """0: what the launcher's template says; so with the others."""
    memory_gib: float = 0.0
    hours: float = 0.0
    gpus: int = 0
    """Of each node."""
    nodes: int = 1
    nice: int = 0
    """By how much others go before it."""


@dataclass(frozen=True)
class LaunchSpec:
    """One process to start."""

    token: str
    """The replica's token; every process it starts carries it in its environment."""
    directory: Path
    """Of this replica alone: log, heartbeat, exit file."""
    argv: Sequence[str]
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    """On top of the launcher's own. Secrets go here: this is never written to a file and never in argv."""
    reads: Sequence[Path] = ()
    """What the command may read besides programs, and `writes`: files and directories by their absolute paths."""
    writes: Sequence[Path] = ()
    """Directories that it may write besides its scratch directory; they are made when they are missing."""
    ours: Sequence[Path] = ()
    """Directories of the control plane's own: of those alone a launcher opens to the account of runs what it reads."""
    gpus: bool = False
    """Whether it sees the GPUs of the machine."""
    cores: Sequence[int] = ()
    """Of this machine, those on which it computes; empty: any."""
    network: bool = False
    """Whether it is on the machine's network: ranks on several nodes talk to each other."""
    grace_s: float = 10.0
    """Seconds between asking the process to end and killing it."""
    need: JobSize = JobSize()
    template: str = ""
    """Which of the installation's templates for jobs it is started by."""
    serves: Path | None = None
    """The socket on which it will answer HTTP. Where that is not this machine, a door with `key` leads to it."""
    key: str = field(default="", repr=False)
    root: Path | None = None
    """Where on this node lies what is named here, if that is not what it is called: below it, under the same path."""
    sends: Sequence[Mapping[str, Any]] = ()
    """What has to be brought to a node that does not share our files: `path`, whether to `follow_links` there, and
    whether only an empty directory is wanted (`is_empty`)."""
    keeps: Sequence[Path] = ()
    """What is fetched from such a node when the command has ended."""
    asks: Path | None = None
    """The socket over which it asks `url`. Where that is not this machine, a door leads there."""
    url: str = ""
    avoids: Sequence[str] = ()
    """Nodes that are not to be taken while there are others."""


@dataclass(frozen=True)
class Handle:
    """Where to find a started replica."""

    token: str
    directory: Path


def sockets_of(key: str) -> Path:
    """Where on its node a replica has its sockets, each in a directory of its own. Not on the disk that nodes share;
    under a name that only who has its key can make, for others may write there too."""
    return Path("/tmp") / f"rollyard-{hashlib.sha256(key.encode()).hexdigest()[:24]}"


def scratch(directory: Path) -> Path:
    """What of a replica's directory the replica itself may write: its home, its caches, the fault it died of."""
    return directory / "scratch"


class End(StrEnum):
    """Why a replica is no longer alive, as far as is known."""

    DIED = ""
    """By itself."""
    ASKED = "asked"
    ABANDONED = "abandoned"
    """The supervisor it was started under is gone."""
    UNWATCHED = "unwatched"
    """Its shepherd died without writing an exit file."""
    UNSTARTED = "unstarted"
    SILENT = "silent"
    """Its shepherd's heart was not seen to beat for too long."""
    LIMIT = "limit"
    """It used more than it may, see `Observation.excess`."""
    TIME_LIMIT = "time_limit"
    """The time that its job may take was over; so with the others, which a scheduler alone does."""
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"
    NODE_FAILED = "node_failed"
    OUT_OF_MEMORY = "out_of_memory"
    VANISHED = "vanished"
    """The scheduler knows of no such job any more, and nothing was heard of it."""


@dataclass(frozen=True)
class Observation:
    """What can be seen of a replica now."""

    alive: bool
    exit_code: int | None = None
    """None while alive, and when it died without a trace. Minus the signal's number when a signal ended it."""
    heartbeat_age_s: float | None = None
    """Age of the shepherd's heartbeat. None before the first."""
    end: End = End.DIED
    """Of one that is not alive."""
    excess: Mapping[str, Any] = field(default_factory=dict)
    """`what` was exceeded, how much was `used` and how much is `allowed`: of an end by LIMIT."""
    waiting: str = ""
    """Why one that is alive has not begun yet, in words; empty once it has."""
    words: str = ""
    """Of an end that it can have said nothing of itself: what there is to look at."""
    base_url: str = ""
    """Where it answers HTTP, where only its launcher can say."""
    job: str = ""
    """The number of its job, where it is one."""
    node: str = ""
    """Where it is, the first of its nodes; empty until that is known."""
    heartbeat_at: float | None = None
    """When its heart last beat, by the clock of whoever wrote that; None where the next beat need not come now."""


class Launcher(Protocol):
    """Starts replicas somewhere. Every call has a deadline and may be repeated without harm."""

    def start(self, spec: LaunchSpec) -> Handle:
        """Start the process and return when it runs. Raises LaunchError when it does not."""

    def poll(self, handle: Handle) -> Observation:
        """Look at the replica."""

    def stop(self, handle: Handle, deadline_s: float) -> Observation:
        """End the replica with everything it started; kill what is left after `deadline_s`."""

    def living(self) -> set[str]:
        """Tokens that living processes carry here, also those of other installations."""

    def sweep(self, token: str, deadline_s: float) -> list[int]:
        """End every process that carries the token. Returns the ids of those that would not die."""

    def bring(self, handle: Handle, path: Path) -> None:
        """Have the replica see a directory that was written since it began. Raises LaunchError."""

    def logs(self, handle: Handle, lines: int) -> str:
        """Return the last lines the replica wrote; empty when there is no log."""
