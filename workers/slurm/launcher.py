"""Start replicas as jobs of SLURM. A job is an agent on a node, which starts what it finds in the replica's directory.

    sbatch ──▶ workers.agent, on the node ──▶ shepherd ──▶ the command in its sandbox
                   │
    DIRECTORY, seen by the node too: job.json  agent.json  started.json  log.txt  heartbeat  stop  why.json  exit.json

A job is never put back by SLURM: where one is preempted or loses its node, another replica takes its place, with a
token and a directory of its own, so nothing that starts twice writes the same files.
"""

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from workers import transfers
from workers.launchers.base import (
    JOB_VARIABLE,
    Handle,
    JobSize,
    LauncherAway,
    LaunchError,
    LaunchSpec,
    Observation,
)
from workers.launchers.local import last_lines
from workers.launchers.shepherd import write_json
from workers.nodes import Node, NodeAway
from workers.slurm import files, queue, states, templates
from workers.slurm.carrier import Carrier
from workers.transfers import TransferError

log = logging.getLogger(__name__)

_POLL_S = 0.5
_CANCEL_S = 10.0
_KEPT = 2
"""Of the directories that were brought to a node one after another."""
_AVOIDING_S = 120.0
"""For which a job waits for other nodes than those that it avoids."""
_AMBIGUOUS_S = 10.0
"""After a submission that was not answered, for which the queue is searched for the job."""


class SlurmLauncher:
    """Jobs. What it remembers, such as since when one has been absent, may be lost."""

    def __init__(self, home: Path, key_of: Callable[[str], str] = str) -> None:
        """`key_of`: the key of a replica's door, by its token."""
        self._home = home
        self._key_of = key_of
        self._carriers: dict[str, Carrier] = {}
        self._carried_since: dict[str, float] = {}
        self._brought: dict[str, list[Path]] = {}
        self._queue = queue.Queue()
        self._absent_since: dict[str, float] = {}
        self._unheard_since: dict[str, float] = {}
        self._completing_since: dict[str, float] = {}
        self._bound: set[str] = set()
        self._lock = threading.Lock()

    def start(self, spec: LaunchSpec) -> Handle:
        try:
            template = templates.read(self._home, spec.template)
        except templates.TemplateError as error:
            raise LaunchError(str(error)) from None
        spec.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        described = _described(spec, template)
        write_json(spec.directory / "job.json", described)
        secrets = {JOB_VARIABLE: json.dumps({"job": described, "environ": dict(spec.environ), "key": spec.key})}
        script = templates.script(template, spec.need, templates.agent(template, spec.directory))
        try:
            number = _submit(template, spec, script, secrets)
        except queue.SlurmPutOff as error:
            raise LauncherAway(f"SLURM does not take the job now: {error}") from None
        except queue.SlurmRefused as error:
            raise LaunchError(f"SLURM refused the job: {error}") from None
        except queue.SlurmAway as error:
            if not self._was_queued(spec.token):
                raise LauncherAway(f"the job could not be given to SLURM: {error}") from None
            number = ""
        finally:
            self._queue.forget()
        log.info("job %s is %s", number, spec.directory.name)
        return Handle(spec.token, spec.directory)

    def cores(self, template: str, need: JobSize) -> int:
        """How many a job has. Raises TemplateError."""
        return templates.cores_of(templates.read(self._home, template), need)

    def complaint(self, template: str, needs: list[JobSize], project: str | None = None) -> str:
        """Why SLURM would not take a job that wants so much, or a project's run may not have one; empty when all is
        well. Raises queue.SlurmAway, and queue.SlurmClosed for what it would not take now and will another time."""
        if not queue.is_installed():
            return "there is no sbatch on this machine: install SLURM's clients, or set launcher.type to 'local'"
        try:
            found = templates.read(self._home, template, project=project)
            for need in needs:
                options = templates.options(found, need, templates.fresh_token(), self._home / templates.JOB_LOG)
                queue.would_take(options, templates.script(found, need, templates.agent(found, self._home)))
        except templates.TemplateError as error:
            return str(error)
        except queue.SlurmClosed as error:
            raise queue.SlurmClosed(f"by the template {template}: {error}") from None
        except queue.SlurmRefused as error:
            return f"by the template {template}: {error}"
        return ""

    def poll(self, handle: Handle) -> Observation:
        self._carry(handle)
        # The queue first: what it says has ended has written its last by then.
        try:
            job = self._queue.jobs().get(handle.token)
            absent_s = self._lasting_s(self._absent_since, handle.token, holds=job is None)
        except queue.SlurmAway:
            job, absent_s = None, None
        given_s = files.age_s(handle, "job.json")
        # Without the file it was never given to SLURM.
        submitted_s = states.SUBMITTED_S if given_s is None else given_s
        written, unheard_s, completing_s = self._heard(handle), 0.0, 0.0
        if job is not None:
            unheard_s = self._lasting_s(self._unheard_since, handle.token, holds=states.is_unheard(job, written))
            completing_s = self._lasting_s(self._completing_since, handle.token, holds=job.state == "COMPLETING")
        seen = states.judge(
            job, written, absent_s=absent_s, submitted_s=submitted_s, unheard_s=unheard_s, completing_s=completing_s
        )
        if job is not None and job.state == "PENDING" and job.avoids and submitted_s > _AVOIDING_S:
            self._allow_all_nodes(handle)
        return seen if job is None else replace(seen, job=job.number, node=job.first_node)

    def stop(self, handle: Handle, deadline_s: float) -> Observation:
        try:
            handle.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            # By a file, which the agent looks for: SLURM need not answer for that.
            (handle.directory / "stop").touch()
        except OSError as error:  # of a full disk, say: only SLURM can tell it then
            log.warning("%s is not asked to end, but cancelled: %s", handle.directory.name, error)
            deadline_s = 0.0
        expires = time.monotonic() + deadline_s
        while files.of(handle, "exit.json") is None and time.monotonic() < expires:
            seen = self.poll(handle)
            if seen.waiting or not seen.alive:
                break
            time.sleep(_POLL_S)
        self.sweep(handle.token, max(0.0, expires - time.monotonic()))
        return self.poll(handle)

    def living(self) -> set[str]:
        """Without those that SLURM is ending already: nobody else can, and a node may hang for days."""
        if not queue.is_installed():
            return set()
        try:
            found = self._queue.jobs().items()
            return {token for token, job in found if not job.has_ended and job.state != "COMPLETING"}
        except queue.SlurmAway:
            return set()

    def sweep(self, token: str, deadline_s: float) -> list[int]:
        """Cancel what is left of a job. One that does not end is left to the next look for orphans: the ids of its
        processes are its node's, so none is returned."""
        expires = time.monotonic() + max(deadline_s, _CANCEL_S)
        try:
            if self._is_left(token):
                queue.cancel(token)
            while self._is_left(token) and time.monotonic() < expires:
                time.sleep(_POLL_S)
            for since in (self._absent_since, self._unheard_since, self._completing_since, self._carried_since):
                since.pop(token, None)
            self._brought.pop(token, None)
            self._bound.discard(token)
        except (queue.SlurmAway, queue.SlurmRefused) as error:
            log.warning("a job could not be cancelled: %s", error)
        return []

    def bring(self, handle: Handle, path: Path) -> None:
        described = files.of(handle, "job.json")
        if described is None or described["shared"]:
            return
        try:
            url = files.told_url(handle) or self._url_of(handle)  # the former while SLURM is away, too
            if not url:
                raise LaunchError("its agent has not said where it listens")
            with closing(Node(url, self._key_of(handle.token))) as node:
                if handle.token not in self._brought:  # or by a control plane that was killed
                    self._brought[handle.token] = _brought_before(node, described, path.parent)
                node.send(path, transfers.entries(path))
                brought = [each for each in self._brought[handle.token] if each != path] + [path]
                for old in brought[:-_KEPT]:
                    node.ask("POST", "drop", {"path": str(old)})
                self._brought[handle.token] = brought[-_KEPT:]
        except (NodeAway, TransferError, OSError) as error:
            raise LaunchError(f"{path.name} was not brought to its node: {error}") from None

    def logs(self, handle: Handle, lines: int) -> str:
        """Of the command, of other nodes too; before there is one, of the job."""
        first = last_lines(handle.directory / "log.txt", lines)
        others = (last_lines(file, lines) for file in sorted(handle.directory.glob("node-*/log.txt")))
        told = "\n".join(filter(None, (*others, first))) or last_lines(handle.directory / templates.JOB_LOG, lines)
        return told or self._last_comment(handle.token)

    def _carry(self, handle: Handle) -> None:
        """See to it that somebody carries the files of a job that does not share them."""
        with self._lock:
            carrier = self._carriers.get(handle.token)
            if carrier is not None and carrier.is_alive():
                return
            described = files.of(handle, "job.json")
            if described is None or described["shared"] or (handle.directory / "exit.json").exists():
                self._carriers.pop(handle.token, None)
                return
            carrier = Carrier(handle.directory, self._key_of(handle.token), lambda: self._url_of(handle))
            self._carriers[handle.token] = carrier
            self._carried_since.setdefault(handle.token, time.monotonic())
            carrier.start()

    def _heard(self, handle: Handle) -> files.Written:
        """What a job has written. A heart that only its carrier hears is silent since that began at most: before it,
        the control plane may have been away."""
        written, since = files.read(handle), self._carried_since.get(handle.token)
        if since is None or written.heartbeat_age_s is None:
            return written
        age_s = min(written.heartbeat_age_s, time.monotonic() - since)
        return written._replace(heartbeat_age_s=age_s, silent_s=age_s)

    def _url_of(self, handle: Handle) -> str | None:
        """Where the agent of a job listens; empty: nobody knows; None: the job has ended."""
        try:
            job = self._queue.jobs().get(handle.token)
        except queue.SlurmAway:
            return files.told_url(handle)
        if job is None or job.has_ended:
            return None
        return job.comment if job.comment.startswith("http") else ""

    def _allow_all_nodes(self, handle: Handle) -> None:
        """Have a job that waits avoid no node any more, if it was we who had it avoid some. What somebody refuses is
        asked once."""
        described = files.of(handle, "job.json")
        if described is None or not described.get("avoids") or handle.token in self._bound:
            return
        try:
            queue.allow_all_nodes(handle.token)
        except queue.SlurmAway as error:
            log.warning("%s may not have any node yet: %s", handle.directory.name, error)
        except queue.SlurmRefused as error:
            self._bound.add(handle.token)
            log.warning("%s goes on avoiding nodes: %s", handle.directory.name, error)
        self._queue.forget()

    def _last_comment(self, token: str) -> str:
        """What an agent said that could do nothing else."""
        with suppress(queue.SlurmAway, KeyError):
            comment = self._queue.jobs()[token].comment
            return "" if comment.startswith("http") else comment
        return ""

    def _is_left(self, token: str) -> bool:
        job = self._queue.jobs(anew=True).get(token)
        return job is not None and not job.has_ended

    def _was_queued(self, token: str) -> bool:
        expires = time.monotonic() + _AMBIGUOUS_S
        while time.monotonic() < expires:
            try:
                return token in self._queue.jobs(anew=True)
            except queue.SlurmAway:
                time.sleep(_POLL_S)
        return False

    def _lasting_s(self, since: dict[str, float], token: str, *, holds: bool) -> float:
        """For how long something has held of a job; `since`: when that was first seen, by tokens."""
        with self._lock:
            if not holds:
                since.pop(token, None)
                return 0.0
            return time.monotonic() - since.setdefault(token, time.monotonic())


def _submit(template: templates.Template, spec: LaunchSpec, script: str, secrets: Mapping[str, str]) -> str:
    """Queue a job away from what it avoids or, where SLURM has no other nodes for it, anywhere. Raises as
    `queue.submit`."""
    output = spec.directory / templates.JOB_LOG
    if spec.avoids:
        elsewhere = templates.options(template, spec.need, spec.token, output, spec.avoids)
        try:
            return queue.submit(elsewhere, script, secrets)
        except queue.SlurmRefused as error:
            log.warning("%s may have any node: without %s %s", spec.directory.name, ", ".join(spec.avoids), error)
    return queue.submit(templates.options(template, spec.need, spec.token, output), script, secrets)


def _brought_before(node: Node, described: Mapping[str, Any], directory: Path) -> list[Path]:
    """What a node has in a directory beside what its job was begun with, in the order in which it came."""
    begun_with = {each["path"] for each in described["sends"]}
    told = json.loads(node.ask("GET", "brought"))["paths"]
    return [Path(each) for each in told if Path(each).parent == directory and each not in begun_with]


def _described(spec: LaunchSpec, template: templates.Template) -> dict[str, Any]:
    """What the agent is to start, but for what is secret."""
    described = asdict(spec) | {"python": sys.executable, "shared": template.shared, "nodes": spec.need.nodes}
    for secret in ("environ", "key", "need", "template", "directory", "root"):
        del described[secret]
    return json.loads(json.dumps(described, default=str))  # type: ignore[no-any-return]
