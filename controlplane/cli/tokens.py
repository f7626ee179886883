"""Commands about tokens: make one for a machine."""

from datetime import timedelta
from typing import Annotated

import typer

from controlplane.cli.terminal import Json, Project, complaint, connect, fail, print_json, project_of, say

_app = typer.Typer(no_args_is_help=True, help="Credentials for machines.")


def register(app: typer.Typer) -> None:
    """Add the commands to a program."""
    app.add_typer(_app, name="token")


@_app.command("create")
def create_token(
    name: Annotated[str, typer.Argument(help="What it is for.")],
    scope: Annotated[list[str], typer.Option(help="read, curate, launch, submit, play or train; repeat for more.")],
    user: Annotated[str, typer.Option(help="Whose rights it borrows.")] = "admin",
    project: Project = "default",
    days: Annotated[int, typer.Option(min=1, max=3650, help="Days until it expires.")] = 90,
    as_json: Json = False,
) -> None:
    """Make an API token and print it: it is stored hashed and cannot be read again."""
    connect()
    from django.contrib.auth.models import User

    from rollouts.errors import ControlPlaneError
    from rollouts.models import Scope
    from rollouts.services.runs import tokens

    if unknown := set(scope) - set(Scope.values):
        known = f"Known: {', '.join(Scope.values)}."
        raise typer.BadParameter(f"unknown: {', '.join(sorted(unknown))}. {known}", param_hint="--scope")
    owner = User.objects.filter(username=user, is_active=True).first()
    if owner is None:
        fail(f"no active user {user!r}")
    scopes = [Scope(each) for each in scope]
    try:
        token = tokens.create(
            user=owner, project=project_of(project), name=name, scopes=scopes, ttl=timedelta(days=days)
        )
    except ControlPlaneError as error:
        fail(complaint(error))
    print_json({"token": token}) if as_json else say(token)
