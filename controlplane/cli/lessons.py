"""Lessons: a tiny model learns before your eyes, in a control plane that is started for it. The demo and the examples.

    up ─► tiny Qwen3 with random weights ─► supervised warm-up, a model now ─► reinforcement learning

The process a person starts is `rollyard up` (`host`); the lesson itself runs below it as its job.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

from controlplane.home import Home
from controlplane.safety import UnsafeSettings

_DRIVERS = 4


class NotDone(Exception):
    """The lesson cannot go on; the message says why."""


def host(
    home: Home, name: str, argv: Sequence[str], *, port: int | None = None, stays: bool = False, **environ: str
) -> int:
    """Be the supervisor of a lesson, a module and its words; returns the exit status.

    `port`: 0 is any free one, None the usual one. `stays`: whether all stays up when the lesson is over.
    """
    from controlplane.up import start
    from controlplane.up.processes import Program
    from controlplane.up.supervisor import StartError

    options = start.Options(
        port=port,
        concurrency=_DRIVERS,
        quiet=True,
        job=Program(name, (sys.executable, "-m", *argv), environ=environ),
        on_job_line=say,
        stays=stays,
    )
    try:
        return start.run(home, options)
    except (start.AlreadyUp, StartError, UnsafeSettings) as error:
        say(f"error: {error}")
        return 1


def make_tiny(seed: int, *, tools: bool = False) -> str:
    """Make a tiny Qwen3 with the random weights of a seed, unless it is there; returns its name. Raises NotDone."""
    from rollouts.errors import Conflict, ControlPlaneError
    from rollouts.models import Model
    from rollouts.services import models
    from rollouts.services.runs import projects

    name = f"tiny-{'tools-' if tools else ''}seed-{seed}"
    project, directory = projects.ensure_default(), models.built_in_directory(name)
    try:
        if directory.exists() and not Model.objects.filter(project=project, name=name).exists():
            # Whoever made it was ended before it had a row, or the row was taken away.
            models.add(project=project, name=name, source=str(directory), user=None)
        else:
            models.make_tiny(project=project, name=name, seed=seed, tools=tools)
    except Conflict:
        pass
    except ControlPlaneError as error:
        raise NotDone(error.message) from error
    return name


def resolved(source: str | Path, overrides: Sequence[str]) -> Any:
    """The config of a preset or a file with overrides, over that of the environment. Raises NotDone."""
    from trainers.config import ConfigError, resolve

    preset, files = (None, [source]) if isinstance(source, Path) else (source, [])
    try:
        return resolve(preset, files, overrides, os.environ)
    except ConfigError as error:
        raise NotDone(f"the config of {source} makes no sense: {error}") from error


def launch(config: Any, *, actor: str) -> Any:
    """Launch a resolved config in the default project; returns the run at once. Raises NotDone."""
    from rollouts.errors import ControlPlaneError
    from rollouts.models import Run
    from rollouts.services.runs import launches, projects

    try:
        run = launches.launch(
            project=projects.ensure_default(),
            user=projects.ensure_admin(),
            resolved=config,
            actor=actor,
            forkable=Run.objects.all(),
        )
    except ControlPlaneError as error:
        raise NotDone("; ".join([error.message, *error.fields.values()])) from error
    say(f"{actor}: run {run.key} is at {os.environ['ROLLYARD_URL']}/runs/{run.key}")
    return run


def finish(run: Any) -> None:
    """Follow a run to its end. Raises NotDone unless it finished."""
    from controlplane.cli import follow

    if follow.follow(run.key, say):
        run.refresh_from_db()
        raise NotDone(f"run {run.key} {run.state}: {run.state_reason}")


def result_of(run: Any) -> str:
    """Name of the model that a finished run registered. Raises NotDone."""
    from rollouts.models import Model

    model = Model.objects.filter(run=run).first()
    if model is None:
        raise NotDone(f"run {run.key} left no model")
    return str(model.name)


@contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Put the seconds that this takes under a name, also where it fails."""
    began = monotonic()
    try:
        yield
    finally:
        seconds[name] = round(monotonic() - began, 1)


def say(line: str) -> None:
    """Print at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
