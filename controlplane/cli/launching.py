"""What a command line asks to launch, and everything that is wrong with it, at once."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from controlplane.cli.checkpoints import plan_fork
from trainers.config import ConfigError, ConfigProblem, Resolved, preset_and_overrides, resolve
from trainers.run_config.suggestions import suggest


class Launching(NamedTuple):
    """A run that can be launched."""

    resolved: Resolved
    fork: Any
    """The checkpoint that it starts from, with its overrides; None for a run that is no fork."""


def read_launch(
    words: Sequence[str], files: Sequence[Path], *, project: str | None, fork_from: str, fork_optimizer: bool
) -> Launching:
    """Resolve the config that words and files ask for. Raises ConfigError with every problem of the launch.

    Words that end in `.toml` are files, before the others.

    Reads the database for a fork, and to see whether there is such a project; `None`: do not look.
    """
    problems: list[ConfigProblem] = []
    if project is not None:
        problems += _project_problems(project)
    fork, forked = None, []
    try:
        fork = plan_fork(fork_from, with_optimizer=fork_optimizer)
        forked = [f"{key}={value}" for key, value in (fork.overrides if fork else {}).items()]
    except ConfigError as error:
        problems += error.problems
    named = [word for word in words if word.endswith(".toml") and "=" not in word]
    preset, overrides = preset_and_overrides([word for word in words if word not in named])
    try:
        resolved = resolve(preset, [*map(Path, named), *files], [*overrides, *forked], os.environ)
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from None
    if problems:
        raise ConfigError(problems)
    return Launching(resolved, fork)


def _project_problems(slug: str) -> list[ConfigProblem]:
    from rollouts.models import Project

    known = list(Project.objects.values_list("slug", flat=True))
    return [] if slug in known else [ConfigProblem("--project", f"no project {slug!r}.", suggest(slug, known))]
