"""Start replicas as processes of this machine, each in a sandbox and under a shepherd that outlives us."""

import json
import os
import platform
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from workers.launchers import confinement, limits
from workers.launchers.base import End, Handle, LaunchError, LaunchSpec, Observation, scratch
from workers.launchers.processes import TOKEN_VARIABLE, boot_id, carriers, end, living_tokens, send, start_time
from workers.launchers.sandbox import SandboxUnavailable
from workers.launchers.shepherd import write_json

_START_DEADLINE_S = 20.0
_POLL_S = 0.05
_LOG_TAIL_BYTES = 256 * 1024
_OWN_SECRETS = ("DATABASE_URL", "DATABASE_OWNER_URL", "REDIS_URL", "ROLLYARD_SECRET_KEY", "DJANGO_SETTINGS_MODULE")
"""The control plane's own; a replica reaches it over HTTP with a token of its run only."""


class LocalLauncher:
    """Subprocesses. Linux only: it finds processes through /proc."""

    def start(self, spec: LaunchSpec) -> Handle:
        place = spec.directory if spec.root is None else spec.root / spec.directory.relative_to("/")
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            room = confinement.make(
                scratch(spec.directory),
                reads=spec.reads,
                writes=spec.writes,
                ours=spec.ours,
                gpus=spec.gpus,
                network=spec.network,
                root=spec.root,
            )
        except SandboxUnavailable as error:
            raise LaunchError(str(error)) from error
        description = {"token": spec.token, "argv": list(spec.argv), "grace_s": spec.grace_s, "cores": list(spec.cores)}
        if room is not None:
            description |= {"sandbox": asdict(room), "limits": asdict(limits.default())}
        write_json(place / "spec.json", description)
        try:
            subprocess.run(
                [sys.executable, "-m", "workers.launchers.shepherd", str(place)],
                env=_environ(spec, confined=room is not None),
                cwd=place,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                timeout=_START_DEADLINE_S,
                check=True,
            )
        except subprocess.CalledProcessError as error:
            raise LaunchError(f"{spec.argv[0]} did not start: {error.stderr.strip()}") from error
        except subprocess.TimeoutExpired as error:
            self.sweep(spec.token, 0)
            raise LaunchError(f"{spec.argv[0]} did not start within {_START_DEADLINE_S:.0f} s") from error
        return Handle(spec.token, place)

    def poll(self, handle: Handle) -> Observation:
        heartbeat_at = _written_at(handle.directory / "heartbeat")
        heartbeat_age_s = None if heartbeat_at is None else max(0.0, time.time() - heartbeat_at)
        alive = _shepherd(handle) is not None
        # Read after looking at the process: it writes the file before it ends, so dead without a file is final.
        exit_file = _read_json(handle.directory / "exit.json")
        if exit_file and exit_file.get("token") == handle.token:
            end, excess = End(exit_file.get("end", "")), exit_file.get("excess", {})
            return Observation(False, exit_file["code"], heartbeat_age_s, end, excess, node=platform.node())
        if alive:
            return Observation(True, None, heartbeat_age_s, node=platform.node(), heartbeat_at=heartbeat_at)
        started = (handle.directory / "started.json").exists()
        end = End.UNWATCHED if started else End.UNSTARTED
        return Observation(False, None, heartbeat_age_s, end, node=platform.node())

    def stop(self, handle: Handle, deadline_s: float) -> Observation:
        expires = time.monotonic() + deadline_s
        if shepherd := _shepherd(handle):
            pid, started = shepherd
            # Only the shepherd is asked: it ends the command in the order the command wants.
            send(pid, signal.SIGTERM, started=started)
            while start_time(pid) == started and time.monotonic() < expires:
                time.sleep(_POLL_S)
        self.sweep(handle.token, max(0.0, expires - time.monotonic()))
        return self.poll(handle)

    def living(self) -> set[str]:
        return living_tokens()

    def sweep(self, token: str, deadline_s: float) -> list[int]:
        me = os.getpid()
        return sorted(end(lambda: carriers(token) - {me}, deadline_s))

    def bring(self, handle: Handle, path: Path) -> None:
        """Nothing: it is here."""

    def logs(self, handle: Handle, lines: int) -> str:
        return last_lines(handle.directory / "log.txt", lines)


def last_lines(file: Path, lines: int) -> str:
    """The end of a log; empty where there is none."""
    try:
        with file.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - _LOG_TAIL_BYTES))
            tail = log.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(tail.splitlines()[-lines:])


def _environ(spec: LaunchSpec, *, confined: bool) -> dict[str, str]:
    packages = str(Path(__file__).resolve().parents[2])
    path = [packages, *filter(None, [os.environ.get("PYTHONPATH")])]
    if confined:
        inherited = confinement.variables(scratch(spec.directory), network=spec.network)
    else:
        inherited = {name: value for name, value in os.environ.items() if name not in _OWN_SECRETS}
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONUNBUFFERED": "1",
        # vLLM renames its processes, and renaming overwrites the environment that we find them by.
        "SPT_NOENV": "1",
        **spec.environ,
        TOKEN_VARIABLE: spec.token,
    }


def _shepherd(handle: Handle) -> tuple[int, int] | None:
    """Process id and start time of the replica's shepherd when it is alive."""
    record = _read_json(handle.directory / "started.json")
    if record is None or record["token"] != handle.token or record["boot_id"] != boot_id():
        return None
    pid, started = int(record["pid"]), int(record["start_time"])
    return (pid, started) if start_time(pid) == started else None


def _written_at(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return content
