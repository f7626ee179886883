"""Every command that has a module of its own, in the order in which the help lists them."""

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
    trust,
)

_MODULES = (data, checkpoints, curation, exports, models, datasets, trust, endpoints, envs, evals, synthesis, examining)


def register(app: typer.Typer) -> None:
    """Add them to a program."""
    for module in _MODULES:
        module.register(app)
