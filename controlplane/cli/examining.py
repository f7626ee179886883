"""`rollyard doctor`: the command; what it looks at is in `doctor`, `security` and `cluster`, which need Django."""

from typing import Annotated

import typer

from controlplane.cli.terminal import Json, connect, print_json


def register(app: typer.Typer) -> None:
    """Add the command to a program."""
    app.command("doctor")(_doctor)


def _doctor(
    security: Annotated[bool, typer.Option("--security", help="What it defends, and what is weaker here.")] = False,
    cluster: Annotated[bool, typer.Option("--cluster", help="SLURM and its nodes, by a job of a minute.")] = False,
    as_json: Json = False,
) -> None:
    """Say what is wrong with this installation, and how to mend it."""
    connect(check_database=False)
    from controlplane.cli import cluster as jobs
    from controlplane.cli import doctor
    from controlplane.cli import security as defences

    rows = jobs.examine() if cluster else defences.examine() if security else doctor.examine()
    if as_json:
        print_json([row.as_dict() for row in rows])
    else:
        doctor.show(rows)
    raise typer.Exit(1 if any(row.status == doctor.FAIL for row in rows) else 0)
