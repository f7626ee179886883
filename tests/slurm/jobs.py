"""Jobs of the tests: what they run, and what is waited for of one."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.slurm.cluster import Cluster
from tests.workers.waiting import eventually
from workers.launchers.base import Handle, LaunchSpec, Observation
from workers.slurm.launcher import SlurmLauncher

START_S = 30.0
"""What a job of these tests has until it is at work, or gone."""


def running(spec: LaunchSpec, program: str, **changes: Any) -> LaunchSpec:
    return replace(spec, argv=[sys.executable, "-c", program], **changes)


def begin(launcher: SlurmLauncher, spec: LaunchSpec, word: str = "") -> Handle:
    """Start it, and wait until it is at work and has said so."""
    handle = launcher.start(spec)
    wait_for(launcher, handle, lambda seen: not seen.waiting and word in launcher.logs(handle, 100))
    return handle


def wait_for(
    launcher: SlurmLauncher, handle: Handle, holds: Callable[[Observation], bool], within_s: float = START_S
) -> Observation:
    seen: list[Observation] = []

    def look() -> bool:
        seen.append(launcher.poll(handle))
        return holds(seen[-1])

    try:
        eventually(look, within_s=within_s)
    except AssertionError:
        raise AssertionError(f"last seen: {seen[-1]}; {launcher.logs(handle, 20)}") from None
    return seen[-1]


def has_ended(seen: Observation) -> bool:
    return not seen.alive


def number_of(cluster: Cluster, spec: LaunchSpec) -> str:
    return next(job[0] for job in cluster.jobs() if spec.token in job[3])


def pid_of(spec: LaunchSpec, file: str, key: str) -> int:
    pid: int = json.loads((spec.directory / file).read_text())[key]
    return pid
