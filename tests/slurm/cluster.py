"""A real SLURM of three nodes on this machine: a controller, three `slurmd` and a `munged`, all in one directory.

There is no accounting, as on many clusters. Nothing of the machine's own SLURM is used but the programs.
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.ports import free_port

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch")
NODES = ("n1", "n2", "n3")
_STARTED_S = 30.0
_NODES_DISK = "256m"
"""Of each node, where it has a directory of its own."""


def missing() -> str:
    """What keeps a cluster from being started here, with the fix; empty when nothing does."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    if absent := [name for name in PROGRAMS if shutil.which(name, path=path) is None]:
        return f"there is no {', '.join(absent)}: make slurm"
    return "" if os.geteuid() == 0 else "only root can start slurmd for several nodes"


class Cluster:
    """One that runs."""

    def __init__(self, directory: Path, hidden: Path | None) -> None:
        self.directory = directory
        self._hidden = hidden
        self.environ = {"SLURM_CONF": str(directory / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def ask(self, *words: str) -> str:
        """Run a program of SLURM's and return what it says."""
        done = subprocess.run(
            words, env={**os.environ, **self.environ}, capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
        return done.stdout

    def jobs(self) -> list[list[str]]:
        """Number, state, reason, name and node of every job that has not ended."""
        lines = self.ask("squeue", "--noheader", "--format=%i|%T|%r|%j|%N").splitlines()
        return [line.split("|") for line in lines]

    def start(self, name: str) -> None:
        """Start a daemon: `munged`, `slurmctld`, or the `slurmd` of a node by its name."""
        conf = self.environ["SLURM_CONF"]
        commands: Mapping[str, Sequence[str]] = {
            "munged": [
                *("munged", "--foreground", "--force", f"--socket={self.directory}/munge.socket"),
                *(f"--key-file={self.directory}/munge.key", f"--pid-file={self.directory}/munged.pid"),
                *(f"--seed-file={self.directory}/munged.seed", f"--log-file={self.directory}/munged.log"),
            ],
            "slurmctld": ["slurmctld", "-D", "-i", "-f", conf],
        }
        with (self.directory / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                commands.get(name) or [*self._hiding(), "slurmd", "-D", "-N", name, "-f", conf],
                env={**os.environ, **self.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def _hiding(self) -> list[str]:
        """The beginning of a command that sees an empty directory of its own where others see the hidden one."""
        if self._hidden is None:
            return []
        mounting = f'mount -t tmpfs -o size={_NODES_DISK} none "$0" && exec "$@"'
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", mounting, str(self._hidden)]

    def end(self, name: str, signum: int = signal.SIGTERM) -> None:
        """End a daemon."""
        daemon = self._daemons.pop(name)
        daemon.send_signal(signum)
        try:
            daemon.wait(10)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    def has_idle_nodes(self) -> bool:
        try:
            states = self.ask("sinfo", "--noheader", "--Node", "--partition=low", "--format=%t")
        except AssertionError:
            return False
        return states.split() == ["idle"] * len(NODES)

    def resume(self) -> None:
        """Bring back nodes that were drained or are down, and wait until all are idle."""

        def are_idle() -> bool:
            for node in NODES:
                # Refused of a node that has come back by itself.
                with contextlib.suppress(AssertionError):
                    self.ask("scontrol", "update", f"NodeName={node}", "State=RESUME")
            return self.has_idle_nodes()

        _until(are_idle, "the nodes are idle again")

    def close(self) -> None:
        for name in reversed(list(self._daemons)):
            self.end(name)


@contextmanager
def running_cluster(directory: Path, hidden: Path | None = None) -> Iterator[Cluster]:
    """Start one, and in the end cancel its jobs and end it. Each node has an empty directory in place of `hidden`."""
    directory.mkdir(mode=0o755, exist_ok=True)
    key = directory / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    (directory / "slurm.conf").write_text(_configuration(directory))
    cluster = Cluster(directory, hidden)
    try:
        cluster.start("munged")
        _until((directory / "munge.socket").exists, "munged listens")
        cluster.start("slurmctld")
        for node in NODES:
            cluster.start(node)
        _until(cluster.has_idle_nodes, "three nodes are idle")
        yield cluster
        if "slurmctld" in cluster._daemons:
            cluster.ask("scancel", "--quiet", f"--user={os.getuid()}")
            _until(lambda: not cluster.jobs(), "no job is left")
    finally:
        cluster.close()


def _until(holds: Callable[[], object], what: str) -> None:
    give_up_at = time.monotonic() + _STARTED_S
    while not holds():
        assert time.monotonic() < give_up_at, f"not within {_STARTED_S:.0f} s: {what}"
        time.sleep(0.1)


def _configuration(directory: Path) -> str:
    host = socket.gethostname().partition(".")[0]
    lines = [
        "ClusterName=rollyard-test",
        f"SlurmctldHost={host}(127.0.0.1)",
        f"SlurmctldPort={free_port()}",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        f"AuthInfo=socket={directory}/munge.socket",
        f"StateSaveLocation={directory}/state",
        f"SlurmdSpoolDir={directory}/spool-%n",
        f"SlurmctldPidFile={directory}/slurmctld.pid",
        f"SlurmdPidFile={directory}/slurmd-%n.pid",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        "SchedulerParameters=sched_interval=1,bf_interval=1",
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        "SlurmdParameters=config_overrides",
        "ReturnToService=2",
        "SlurmdTimeout=10",
        "KillWait=5",
        "MpiDefault=none",
        "MailProg=/bin/true",
        *(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=4 RealMemory=16000"
            for name in NODES
        ),
        "PartitionName=low Nodes=ALL Default=YES PriorityTier=1 MaxTime=60 DefMemPerNode=2000",
        "PartitionName=high Nodes=ALL PriorityTier=10 MaxTime=60 DefMemPerNode=2000",
    ]
    return "\n".join([*lines, ""])
