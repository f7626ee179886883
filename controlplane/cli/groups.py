"""Every group of commands, in the order in which the help has them."""

import typer

from controlplane.cli import (
    checkpoints,
    curation,
    data,
    datasets,
    endpoints,
    envs,
    evals,
    examining,
    exports,
    models,
    synthesis,
    tokens,
    trust,
    workers,
)

_GROUPS = (
    tokens,
    data,
    checkpoints,
    curation,
    exports,
    models,
    datasets,
    trust,
    endpoints,
    envs,
    evals,
    synthesis,
    examining,
    workers,
)


def register(app: typer.Typer) -> None:
    """Add all of them to a program."""
    for group in _GROUPS:
        group.register(app)
