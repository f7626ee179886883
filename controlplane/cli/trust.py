"""Commands about trust: which code from elsewhere runs may execute."""

from typing import Annotated, Any

import typer

from controlplane.cli.terminal import Json, actor, complaint, connect, fail, list_rows, print_json, say

_app = typer.Typer(no_args_is_help=True, help="Code from elsewhere that runs may execute, by name.")

Kind = Annotated[str, typer.Argument(metavar="KIND", help="remote_code, loss, environment or argument.")]
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Model directory or hub name, dotted path, environment, argument of vLLM.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to a program."""
    app.add_typer(_app, name="trust")


@_app.command("list")
def list_trust(as_json: Json = False) -> None:
    """List what is allowed, and what once was."""
    connect()
    from rollouts.models import Trust

    rows = [_row(trust) for trust in Trust.objects.all()]
    list_rows(rows, _line, "No code from elsewhere may be executed: `rollyard trust allow` lets some.", as_json)


@_app.command("allow")
def allow(kind: Kind, name: Name, as_json: Json = False) -> None:
    """Let every run that names it execute this code. Its sandbox stays; the files of its project do not."""
    _change("allow", kind, name, as_json)


@_app.command("withdraw")
def withdraw(kind: Kind, name: Name, as_json: Json = False) -> None:
    """Allow it no longer, and end the runs that need it."""
    _change("withdraw", kind, name, as_json)


def _change(what: str, kind: str, name: str, as_json: bool) -> None:
    connect()
    from rollouts.errors import ControlPlaneError
    from rollouts.services import trust

    try:
        row = _row(getattr(trust, what)(kind, name, actor=actor()))
    except ControlPlaneError as error:
        fail(complaint(error))
    if as_json:
        print_json(row)
    else:
        say(f"{kind} {name} is {'not allowed any more' if row['withdrawn_at'] else 'allowed'}")


def _line(row: dict[str, Any]) -> str:
    until = f", until {row['withdrawn_at']} ({row['withdrawn_by']})" if row["withdrawn_at"] else ""
    return f"{row['kind']:<12} {row['name']:<48} {row['allowed_by']}, since {row['allowed_at']}{until}"


def _row(trust: Any) -> dict[str, Any]:
    return {
        "kind": trust.kind,
        "name": trust.name,
        "allowed_by": trust.allowed_actor,
        "allowed_at": trust.allowed_at.isoformat(timespec="seconds"),
        "withdrawn_by": trust.withdrawn_actor,
        "withdrawn_at": trust.withdrawn_at.isoformat(timespec="seconds") if trust.withdrawn_at else None,
    }
