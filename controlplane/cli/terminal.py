"""What every command shares: options, the connection to the database, rows by name, and how to answer and to fail."""

import atexit
import getpass
import json
import os
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from controlplane.home import Home
from environments.visible import visible, visible_line
from workers.remote import CACHES, PASSED

_NEWEST_RUNS = 500
"""Among which a key that is not found is looked for with a letter or two changed."""
_START_DEADLINE_S = 60.0
"""Starting PostgreSQL and migrating an empty database takes ten seconds on a slow machine."""
_RING_S = 1.0
"""For which a command that ends waits until the reconciler and pages have been told what it changed."""
_LAST_PORT = 65535
Json = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]
Project = Annotated[str, typer.Option(help="Slug of the project.")]


def connect(*, check_database: bool = True) -> None:
    """Load Django. Waits for the database while `rollyard up` still starts; ends with a hint if there is none."""
    # A command makes a query or two: connections of its own, and an error at once instead of after the pool's patience.
    os.environ.setdefault("ROLLYARD_DATABASE_POOL_SIZE", "0")
    is_up = _point_at_up()
    import django

    django.setup()
    from rollouts import bell

    atexit.register(bell.wait_until_sent, _RING_S)
    if not check_database:
        return
    deadline, said = time.monotonic() + (_START_DEADLINE_S if is_up else 0.0), False
    while (missing := _missing(is_up=is_up)) is not None:
        if time.monotonic() > deadline:
            fail(missing)
        if not said:
            say("Waiting for `rollyard up`, which still starts ...", err=True)
            said = True
        time.sleep(0.2)


def _missing(*, is_up: bool) -> str | None:
    """What keeps a command from using the database, with the fix; None when nothing does.

    `rollyard up` makes the first project a moment after the last table.
    """
    from django.db import OperationalError, ProgrammingError, connection
    from django.db.migrations.recorder import MigrationRecorder

    from rollouts import migrations
    from rollouts.models import Project

    newest = ("rollouts", max(path.stem for path in Path(migrations.__path__[0]).glob("0*.py")))
    try:
        if newest in MigrationRecorder(connection).applied_migrations():
            return "there is no project yet" if is_up and not Project.objects.exists() else None
    except OperationalError as error:
        why = str(error).splitlines()[0]
        return f"the database does not answer ({why}): start `rollyard up`, or set DATABASE_URL"
    except ProgrammingError:
        pass  # its first tables are just being made, and the application has no rights yet
    return "the database is not up to this code: `rollyard up` or `rollyard migrate` brings it there"


def _point_at_up() -> bool:
    """Let links point at the `rollyard up` of this home, whichever port it got, and paths at the runs that it keeps and
    its cache of the hub, wherever it was started; say whether it is there."""
    try:
        record = json.loads(Home.from_environ().record_file.read_text())
    except (OSError, json.JSONDecodeError):
        return False
    os.environ.setdefault("ROLLYARD_URL", record["url"])
    is_up = Path(f"/proc/{record['pid']}").exists()
    if is_up and "runs" in record:  # not in that of an older release
        os.environ["ROLLYARD_RUNS_DIR"] = record["runs"]
    if is_up and "environ" in record:
        for name in (*PASSED, *CACHES):
            os.environ.pop(name, None)
        os.environ.update(record["environ"])
    return is_up


def project_of(slug: str) -> Any:
    """The project with this slug, or the end."""
    from rollouts.models import Project as Row

    if found := Row.objects.filter(slug=slug).first():
        return found
    fail(f"no project {slug!r}")


def run_of(key: str) -> Any:
    """The run with this key, or the end."""
    found, meant = find_run(key)
    return found or fail(f"no run {key!r}{f'. Did you mean {meant}?' if meant else ''}")


def find_run(key: str) -> tuple[Any, str]:
    """The run with this key, or None and the key that was probably meant."""
    from rollouts.models import Run
    from trainers.run_config.suggestions import suggest

    if found := Run.objects.filter(key=key).first():
        return found, ""
    return None, suggest(key, Run.objects.order_by("-id").values_list("key", flat=True)[:_NEWEST_RUNS])


def complaint(error: Any) -> str:
    """What a service refused, and why, field by field."""
    return "".join([error.message, *(f"\n  {path}: {fault}" for path, fault in error.fields.items())])


def config_line(config: Any, key: str, origin: str) -> str:
    """A value of a run config by its dotted key, and where it came from."""
    from trainers.config import leaves

    return f"{key:<36} {dict(leaves(config)).get(key)!s:<24} {origin}"


def port_of(given: str) -> int | None:
    """A port that a person named; 0 is any free one, None the usual one. Raises ValueError."""
    if given in {"", "auto"}:
        return 0 if given else None
    if not given.isdecimal() or int(given) > _LAST_PORT:
        raise ValueError(f"give a number up to {_LAST_PORT}, or auto")
    return int(given)


def options_given(context: typer.Context, names: Collection[str]) -> list[str]:
    """Which options of these parameters stand on the command line, as they are written there."""
    sources = {name: context.get_parameter_source(name) for name in names}
    given = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
    return [max(option.opts, key=len) for option in context.command.params if option.name in given]


def actor() -> str:
    """Who to name in events."""
    return f"cli:{getpass.getuser()}"


def say(text: str = "", *, err: bool = False) -> None:
    """One line for people. Names and reasons in it command no terminal, and make no lines of their own."""
    typer.echo(visible_line(text), err=err)


def print_json(value: Any) -> None:
    """One line for programs."""
    say(json.dumps(value))


def list_rows(rows: Sequence[dict[str, Any]], line: Callable[[dict[str, Any]], str], none: str, as_json: bool) -> None:
    """A line for each row, and without any what makes the first one; or all of them for programs."""
    if as_json:
        print_json(rows)
        return
    for row in rows:
        say(line(row))
    if not rows:
        say(none, err=True)


def fail(message: str) -> NoReturn:
    """Say why and end with exit status 1."""
    typer.echo(visible(f"error: {message}"), err=True)
    raise typer.Exit(1)
