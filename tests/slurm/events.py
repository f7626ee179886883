"""What may befall the jobs of a run, at random: each happens to a whole Rollyard on a real SLURM, and is told."""

import contextlib
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import psutil

from tests.e2e.yard import Yard, until
from tests.slurm.cluster import Cluster
from workers.launchers.processes import carriers, send

ALIVE = (
    "SELECT p.token::text, p.directory FROM rollouts_replica AS p JOIN rollouts_run AS r ON r.id = p.run_id"
    " WHERE r.key = %s AND p.kind = %s AND p.ended_at IS NULL AND p.answered_at IS NOT NULL"
)
KINDS = (
    *("kill_rank", "cancel_trainer", "kill_trainers_agent", "preempt_trainer", "lose_trainers_node"),
    *("cancel_server", "kill_servers_agent", "preempt_server", "lose_servers_node"),
    *("cancel_worker", "kill_reconciler", "kill_controller"),
)
AT_WORK_S = 300.0


class Events:
    """Those of one run."""

    def __init__(self, yard: Yard, cluster: Cluster, run: str, dice: random.Random) -> None:
        self._yard, self._cluster, self._run, self._dice = yard, cluster, run, dice
        self._limited = set[str]()

    def happen(self, kind: str) -> str:
        """Wait until it can, and let it; returns to what it happened."""
        self._bring_back_drained()
        return str(getattr(self, f"_{kind}")())

    def _bring_back_drained(self) -> None:
        """Be SLURM's administrator: it drains a node whose job has the number of another, which a controller that was
        killed before it wrote what it had given out may give out twice."""
        with contextlib.suppress(AssertionError):  # it is away for a moment
            found = self._cluster.ask("sinfo", "--noheader", "--Node", "--partition=low", "--format=%N|%E").splitlines()
            for node in (line.split("|")[0] for line in found if "Duplicate jobid" in line):
                self._cluster.ask("scontrol", "update", f"NodeName={node}", "State=RESUME")

    def over_in_time(self) -> None:
        """Give the trainer's job as much time as SLURM counts in, unless it has been given that: it is told a minute
        before its end. Another job may have taken its place, for who was to take its node may come late."""
        for number, _node, elapsed in self._jobs("trainer"):
            if number not in self._limited:
                minutes = -(-elapsed // 60) + 1
                self._cluster.ask("scontrol", "update", f"JobId={number}", f"TimeLimit={minutes}")
                self._limited.add(number)

    @contextmanager
    def controller_away(self) -> Iterator[None]:
        """SLURM answers nobody."""
        self._cluster.end("slurmctld")
        try:
            yield
        finally:
            self._cluster.start("slurmctld")

    def _kill_rank(self) -> str:
        node = self._dice.randrange(2)
        return f"of node {node}: {until(lambda: self._rank(node), within_s=AT_WORK_S, what='ranks at work')}"

    def _rank(self, node: int) -> set[int]:
        found = set[int]()
        for token, _ in self._alive("trainer"):
            found |= carriers(f"{token}-{node}" if node else token) & carriers("0", "LOCAL_RANK")
        for pid in found:
            send(pid, signal.SIGKILL)
        return found

    def _cancel_trainer(self) -> str:
        return self._cancel("trainer")

    def _cancel_server(self) -> str:
        return self._cancel("inference")

    def _cancel_worker(self) -> str:
        workers = until(lambda: self._workers(), within_s=AT_WORK_S, what="a worker at work")
        number = self._dice.choice(workers)
        self._cluster.ask("scancel", "--quiet", number)
        return number

    def _kill_trainers_agent(self) -> str:
        return self._kill_agent("trainer")

    def _kill_servers_agent(self) -> str:
        return self._kill_agent("inference")

    def _preempt_trainer(self) -> str:
        return self._preempt("trainer")

    def _preempt_server(self) -> str:
        return self._preempt("inference")

    def _lose_trainers_node(self) -> str:
        return self._lose("trainer")

    def _lose_servers_node(self) -> str:
        return self._lose("inference")

    def _kill_reconciler(self) -> str:
        return str(until(lambda: self._yard.kill_one("reconciler", 0.0), within_s=30, what="a reconciler").pid)

    def _kill_controller(self) -> str:
        self._cluster.end("slurmctld", signal.SIGKILL)
        self._cluster.start("slurmctld")
        return "slurmctld"

    def _cancel(self, kind: str) -> str:
        number, *_ = self._job(kind)
        self._cluster.ask("scancel", "--quiet", number)
        return number

    def _preempt(self, kind: str) -> str:
        """Have somebody with a better right take a node for a moment."""
        _, node, _ = self._job(kind)
        words = ["--partition=high", "--exclusive", f"--nodelist={node}", "--wrap=sleep 1", "--output=/dev/null"]
        self._cluster.ask("sbatch", "--chdir=/", *words)
        return node

    def _lose(self, kind: str) -> str:
        _, node, _ = self._job(kind)
        self._cluster.ask("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
        with contextlib.suppress(AssertionError):  # it came back by itself
            self._cluster.ask("scontrol", "update", f"NodeName={node}", "State=RESUME")
        return node

    def _kill_agent(self, kind: str) -> str:
        agents = until(lambda: self._agents(kind), within_s=AT_WORK_S, what=f"an agent of {kind} at work")
        agent = self._dice.choice(agents)
        with contextlib.suppress(psutil.NoSuchProcess):
            agent.kill()
        return str(agent.pid)

    def _agents(self, kind: str) -> list[psutil.Process]:
        directories = {directory for _, directory in self._alive(kind)}
        found = []
        for process in psutil.process_iter(["cmdline"]):
            line = process.info["cmdline"] or []
            is_agent = "workers.agent" in line and Path(line[0]).name.startswith("python")
            if is_agent and directories & set(line):
                found.append(process)
        return sorted(found, key=lambda process: process.pid)

    def _alive(self, kind: str) -> list[tuple[str, str]]:
        return [(str(token), str(directory)) for token, directory in self._yard.sql(ALIVE, self._run, kind)]

    def _job(self, kind: str) -> tuple[str, str, int]:
        """Number, a node, and for how many seconds it has been running: of the job of a replica that has answered."""
        job = until(lambda: self._jobs(kind), within_s=AT_WORK_S, what=f"a job of {kind} at work")
        return self._dice.choice(job)

    def _jobs(self, kind: str) -> list[tuple[str, str, int]]:
        tokens = {token for token, _ in self._alive(kind)}
        with contextlib.suppress(AssertionError):  # a controller that was killed takes a moment
            lines = self._cluster.ask("squeue", "--noheader", "--states=R", "--format=%i|%j|%B|%S").splitlines()
            found = [line.split("|") for line in lines]
            return [
                (number, node, _age_s(begun))
                for number, name, node, begun in found
                if name.removeprefix("rollyard-") in tokens
            ]
        return []

    def _workers(self) -> list[str]:
        with contextlib.suppress(AssertionError):
            return [job[0] for job in self._cluster.jobs() if "worker-" in job[3] and job[1] == "RUNNING"]
        return []


def _age_s(begun: str) -> int:
    return max(0, round((datetime.now() - datetime.fromisoformat(begun)).total_seconds()))  # noqa: DTZ005 - as SLURM does
