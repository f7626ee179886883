"""What SLURM is asked, by its own programs: `sbatch`, `squeue`, `scancel`. Every call has a deadline.

Jobs are known by their names, which hold the token of a replica: SLURM uses the numbers of jobs again after a reset,
and a submission that timed out may have succeeded, without a number that anybody was told.
"""

import logging
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

log = logging.getLogger(__name__)

_CALL_S = 15.0
_VIEW_S = 1.0
"""For which a look at the queue serves everybody who asks."""
_PAUSE_S = 15.0
"""For which nobody looks again after SLURM did not answer: each try takes as long as its clients wait, about ten."""
_TOKEN = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_FORMAT = "%i|%T|%r|%j|%N|%e|%x|%k"
_ENDED = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    }
)
_MAX_WORDS = 300
_ASKING = ("SBATCH_", "SCANCEL_", "SCONTROL_", "SINFO_", "SLURM_", "SQUEUE_")
"""How variables begin that say to SLURM's programs what options do, and to a job how large it is."""
_FINDING = ("SLURM_CLUSTERS", "SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")
"""Those of them that say where SLURM is, and who asks."""


class SlurmAway(Exception):
    """SLURM did not answer, or is not installed: nothing is known of any job."""


class SlurmRefused(Exception):
    """SLURM does not take this job; the message is its own."""


class SlurmPutOff(SlurmRefused):
    """It does not take this job now, and may another time: what a plugin of the cluster says need not pass, though."""


class SlurmClosed(SlurmPutOff):
    """It will take it another time: a limit is reached, a partition is closed for a while."""


class SlurmHasNoNode(SlurmRefused):
    """None of those that it looked at would do."""


class Job(NamedTuple):
    """What `squeue` says of one."""

    number: str
    state: str
    """Such as PENDING: the long form, as in squeue(1)."""
    because: str
    """Why it is in this state, a word of SLURM's; `None` where it gives none."""
    node: str
    """Of several all, as SLURM writes them: `n[1-3]`."""
    due_at: datetime | None = None
    """When its time is over, or it ended; None: nobody set an end, or it waits."""
    comment: str = ""
    """Where its agent listens, if it has said so."""
    avoids: str = ""
    """Nodes that it may not have, as SLURM writes them."""

    @property
    def first_node(self) -> str:
        """Empty while it has none."""
        name, _, numbers = self.node.partition("[")
        return name.partition(",")[0] if "," in name or not numbers else name + re.split(r"\D", numbers)[0]

    @property
    def has_ended(self) -> bool:
        return self.state in _ENDED


def name_of(token: str) -> str:
    """The name of the job of a replica."""
    return f"rollyard-{token}"


class Queue:
    """The queue as it was a moment ago. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}
        self._looked_at = -_VIEW_S
        self._away: SlurmAway | None = None

    def jobs(self, *, anew: bool = False) -> dict[str, Job]:
        """Our jobs by their tokens, also those that have ended, for as long as SLURM remembers them (minutes). Of
        several under one name the last. Raises SlurmAway."""
        with self._lock:
            age_s = time.monotonic() - self._looked_at
            if self._away is not None and age_s < _PAUSE_S:
                raise SlurmAway(str(self._away))
            if anew or self._away is not None or age_s >= _VIEW_S:
                before = self._away
                try:
                    self._jobs, self._away = _read(_ask(_SQUEUE)), None
                except SlurmRefused as error:
                    self._away = SlurmAway(str(error))
                except SlurmAway as error:
                    self._away = error
                self._looked_at = time.monotonic()
                if self._away is not None and before is None:  # many ask, each of them again and again
                    log.warning("the queue cannot be read: %s", self._away)
            if self._away is not None:
                raise SlurmAway(str(self._away))
            return self._jobs

    def forget(self) -> None:
        """Have the next look be a new one: something was changed."""
        with self._lock:
            if self._away is None:
                self._looked_at = -_VIEW_S


def is_installed() -> bool:
    """Whether this machine has SLURM's programs."""
    return shutil.which("sbatch") is not None


_SQUEUE = ["squeue", "--noheader", "--states=all", f"--user={os.getuid()}", f"--format={_FORMAT}"]


def named(prefix: str) -> dict[str, Job]:
    """Our jobs whose tokens begin with what matches, which those of replicas do not. Raises SlurmAway, SlurmRefused."""
    return _read(_ask(_SQUEUE), prefix)


def _read(lines: str, prefix: str = "") -> dict[str, Job]:
    found: dict[str, Job] = {}
    name = re.compile(f"rollyard-({prefix}{_TOKEN})")
    for line in lines.splitlines():
        fields = line.split("|", _FORMAT.count("|"))
        if len(fields) == len(_FORMAT.split("|")) and (match := name.fullmatch(fields[3].strip())):
            number, state, because, _, node, due_at, avoids, comment = (field.strip() for field in fields)
            job = Job(number, state, because, node, _moment(due_at), comment, avoids)
            before = found.get(match[1])
            if before is None or before.has_ended or not job.has_ended:
                found[match[1]] = job
    return found


def _moment(seconds: str) -> datetime | None:
    """One of SLURM's, which says words such as `N/A` where there is none."""
    return datetime.fromtimestamp(int(seconds), UTC) if seconds.isdecimal() else None


def submit(options: Sequence[str], script: str, secrets: Mapping[str, str]) -> str:
    """Queue a job, and return its number. What is secret goes in SLURM's copy of the environment, which only the
    job's account and SLURM's read.

    Raises SlurmRefused, and SlurmAway: then it may have been queued all the same.
    """
    exported = f"--export={','.join(secrets)}" if secrets else "--export=NIL"
    number = _ask(["sbatch", "--parsable", exported, *options], script, secrets)
    return number.strip().partition(";")[0]


def would_take(options: Sequence[str], script: str) -> None:
    """Ask whether a job could be queued; while nodes that it may have are down, that cannot be told of all. Raises
    SlurmRefused, SlurmAway."""
    try:
        _ask(["sbatch", "--test-only", *options], script)
    except SlurmHasNoNode:
        # So it says of nodes that are up alone. A job waits for the others, unless those would not do either.
        if not _are_nodes_down(options):
            raise


def _are_nodes_down(options: Sequence[str]) -> bool:
    """Whether some are in the partitions that a job names, or in any where it names none."""
    named = [word.removeprefix("--partition=").split(",") for word in options if word.startswith("--partition=")]
    return any(up < nodes for name, (up, nodes) in partitions().items() if not named or name in named[0])


def partitions() -> dict[str, tuple[int, int]]:
    """How many nodes of each partition are up, and how many it has. Raises SlurmAway."""
    found: dict[str, tuple[int, int]] = {}
    for line in _ask(["sinfo", "--noheader", "--format=%R|%T|%D"]).splitlines():
        name, state, count = line.split("|")
        up, nodes = found.get(name, (0, 0))
        is_up = not state.startswith(("down", "drain", "fail", "unknown", "maint")) and not state.endswith("*")
        found[name] = (up + int(count) * is_up, nodes + int(count))
    return found


def cancel(token: str) -> None:
    """End a job, waiting or not, and all of its processes. Raises SlurmAway."""
    _ask(["scancel", "--quiet", f"--name={name_of(token)}", f"--user={os.getuid()}"])


def allow_all_nodes(token: str) -> None:
    """Have a job that waits avoid no node any more. Raises SlurmAway, SlurmRefused."""
    _ask(["scontrol", "update", f"JobName={name_of(token)}", f"UserID={os.getuid()}", "ExcNodeList="])


def tell(token: str, signal: str) -> None:
    """Send a signal, such as USR2, to what the script of a job runs. Raises SlurmAway, SlurmRefused."""
    _ask(["scancel", "--quiet", "--batch", f"--signal={signal}", f"--name={name_of(token)}", f"--user={os.getuid()}"])


def _ask(argv: Sequence[str], given: str = "", environ: Mapping[str, str] | None = None) -> str:
    try:
        done = subprocess.run(
            argv,
            input=given,
            env={**_environ(), **(environ or {})},
            capture_output=True,
            text=True,
            errors="replace",  # jobs of others may have any name
            timeout=_CALL_S,
            check=False,
        )
    except FileNotFoundError:
        raise SlurmAway(f"there is no program {argv[0]} on this machine: install SLURM's clients") from None
    except subprocess.TimeoutExpired:
        raise SlurmAway(f"{argv[0]} did not answer within {_CALL_S:.0f} s") from None
    if done.returncode == 0:
        return done.stdout
    told = _words(done.stderr) or f"{argv[0]} ended with {done.returncode}"
    raise _kind(told)(told[-_MAX_WORDS:])  # why is said last


def _environ() -> dict[str, str]:
    """Without what asks for anything, as of an allocation in which we may be: `sbatch` would pass it on to our jobs."""
    given = {name: value for name, value in os.environ.items() if not name.startswith(_ASKING) or name in _FINDING}
    return {**given, "SLURM_TIME_FORMAT": "%s"}


def _words(complaint: str) -> str:
    """What SLURM's program said, without its own name before every line."""
    lines = (re.sub(r"^\w+: (error: )?", "", line.strip()) for line in complaint.splitlines())
    return "; ".join(line for line in lines if line)


_NO_NODE = "Requested node configuration is not available"
_FINAL = re.compile(
    "|".join(
        [
            r"\binvalid\b(?! (?:user|group|job) id)",
            "access/permission denied",
            "can not be satisfied",
            "is not a valid",
            "memory required by task",
            "more processors requested than permitted",
            "no partition specified",
            "not permitted to use this partition",
            "not supported|unsupported",
            "parameter too long",
            "requested more tasks than available processors",
            _NO_NODE,
            "requested nodes not in this partition",
            "time limit specification required",
            "unrecognized option",
        ]
    ),
    re.IGNORECASE,
)
"""What SLURM says of a job that it will not take tomorrow either. Of all else that it says a job may wait for the end:
one like it was taken when the run began, and the words are on the run's page."""


_PASSING = re.compile("job submit limit|inactive or drain|try again|submissions disabled", re.IGNORECASE)


def _kind(told: str) -> type[SlurmAway | SlurmRefused]:
    """What it is that SLURM says in place of doing what it was asked."""
    if _is_away(told):
        return SlurmAway
    if _NO_NODE in told:
        return SlurmHasNoNode
    if _FINAL.search(told):
        return SlurmRefused
    return SlurmClosed if _PASSING.search(told) else SlurmPutOff


def _is_away(told: str) -> bool:
    marks = (
        "Unable to contact",
        "Socket timed out",
        "Connection refused",
        "Zero Bytes were transmitted",
        "Transport endpoint",
        "Protocol authentication error",
        "Invalid authentication credential",
        "Could not establish a configuration source",
        "Munge",
        "munge",
        "backup controller",
    )
    return any(mark in told for mark in marks)
