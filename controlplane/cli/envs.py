"""Commands about environments of other libraries and packages: what they run in, and how one begins."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli.terminal import Json, fail, print_json, say
from controlplane.home import Home, UnsafeHome
from environments import venvs
from environments.starter import writing

_app = typer.Typer(no_args_is_help=True, help="Environments of other libraries and packages, and where they run.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="What `environments[].python` says.")]


def register(app: typer.Typer) -> None:
    """Add the commands to a program."""
    app.add_typer(_app, name="envs")


@_app.command("new")
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the environment and of its package: my_game.")],
    into: Annotated[
        Path, typer.Option("--into", metavar="DIRECTORY", help="Where its directory NAME is made.", file_okay=False)
    ] = Path(),
    as_json: Json = False,
) -> None:
    """Write a small package with an environment that works, to be changed into one of your own."""
    try:
        directory = writing.write(name, into)
    except writing.StarterError as error:
        fail(str(error))
    if as_json:
        print_json({"name": name, "directory": str(directory.resolve())})
        return
    say(f"{directory} has an environment that works. Change it, and then")
    for command in (
        f"{sys.executable} -m pip install -e {directory}",
        f"{sys.executable} -m environments check {name}",
        f"rollyard trust allow environment {name}",
    ):
        say(f"  {command}")


@_app.command("install")
def install(
    name: Name,
    packages: Annotated[
        list[str] | None, typer.Argument(metavar="[PACKAGE]...", help="Names, files or addresses, as pip takes them.")
    ] = None,
    with_: Annotated[
        list[str] | None, typer.Option("--with", metavar="PACKAGE", help="One more package; may be repeated.")
    ] = None,
    recipe: Annotated[
        list[str] | None,
        typer.Option(metavar="RECIPE", help=f"{', '.join(venvs.RECIPES)}; by default the one NAME says."),
    ] = None,
    python: Annotated[str, typer.Option(metavar="PROGRAM", help="Interpreter, if it is to be another one.")] = "",
    as_json: Json = False,
) -> None:
    """Make a virtual environment, with packages of a recipe or of your own; anew, if those here have changed."""
    home, wanted = Home.from_environ(), [*(packages or []), *(with_ or [])]
    given = {"python": python} if python else {}
    try:
        home.create()
        if not as_json:
            say(f"Installing {name} (minutes, if much has to be downloaded) ...", err=True)
        is_new = venvs.install(home.path / venvs.DIRECTORY, name, wanted, recipes=recipe or [], **given)
        found = venvs.find(home.path / venvs.DIRECTORY, name)
    except (venvs.VenvError, UnsafeHome) as error:
        fail(str(error))
    if as_json:
        print_json({"name": name, "python": str(found)})
    else:
        done = "is installed" if is_new else "was there already with these packages: nothing had to be done"
        say(f'{name} {done}. In a run config: environments = [{{..., python = "{name}"}}]')
        say(f"Its interpreter: {found}")


@_app.command("list")
def list_venvs(as_json: Json = False) -> None:
    """List the virtual environments that are here with the environments they offer, and the recipes that are not."""
    found, beside = venvs.listing(Home.from_environ().path / venvs.DIRECTORY), venvs.offered()
    if as_json:
        print_json(
            [
                {
                    "name": venv.name,
                    "complete": venv.is_complete,
                    "recipes": venv.recipes,
                    "packages": venv.packages,
                    "python": venv.python,
                    "directory": str(venv.directory),
                    "environments": venv.environments,
                }
                for venv in found
            ]
        )
        return
    for venv in found:
        state = f"Python {venv.python}" if venv.is_complete else "in part: install it again"
        offers = f": {', '.join(venv.environments)}" if venv.environments else ""
        say(f"{venv.name:<20} {state:<26} {' '.join([*venv.recipes, *venv.packages])}{offers}")
    if beside:
        say(f"Installed beside Rollyard, and played without `python`: {', '.join(beside)}")
    if missing := [name for name in venvs.RECIPES if name not in {venv.name for venv in found}]:
        say(f"Not installed, and known: {', '.join(missing)}")


@_app.command("remove")
def remove(name: Name) -> None:
    """Delete a virtual environment. Runs that use it fail at the next start of one of its processes."""
    try:
        venvs.remove(Home.from_environ().path / venvs.DIRECTORY, name)
    except venvs.VenvError as error:
        fail(str(error))
    say(f"{name} is removed")
