"""The `rollyard` command line. What it does not know goes to Django's own commands, so `manage.py` is the same program.

Commands that read or write runs speak to the database themselves, through the services and selectors that the REST API
uses; they find it where the settings say (DATABASE_URL, or the embedded server of `rollyard up`).
"""

import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from controlplane.cli import groups, models
from controlplane.cli.completion import RunKey, complete_launch
from controlplane.cli.terminal import (
    Json,
    Project,
    actor,
    complaint,
    config_line,
    connect,
    fail,
    list_rows,
    port_of,
    print_json,
    project_of,
    run_of,
    say,
)
from controlplane.home import Home

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    help="Rollyard: reinforcement learning of language models. Any command of Django works too, such as `migrate`.",
)
runs_app = typer.Typer(no_args_is_help=True, help="Look at runs and stop them.")
app.add_typer(runs_app, name="runs")


def main() -> None:
    """Run one command."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    ours = {each.name for each in app.registered_commands} | {each.name for each in app.registered_groups}
    word = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if word in {*ours, "--help", "-h", "--version", "--install-completion", "--show-completion"}:
        app(prog_name=Path(sys.argv[0]).name)
        return
    import django
    from django.core.management import execute_from_command_line, get_commands

    django.setup()  # before that, Django knows no command of an app
    if not word.startswith("-") and word not in {*get_commands(), "help"}:
        from trainers.run_config.suggestions import suggest

        meant = suggest(word, [each for each in (*ours, *get_commands()) if each])
        say(f"error: no command {word!r}.{f' Did you mean {meant}?' if meant else ''}", err=True)
        sys.exit(2)
    execute_from_command_line(sys.argv)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        say(f"rollyard {version('rollyard')}")
        raise typer.Exit


ShowVersion = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Say which it is.")
]


@app.callback()
def rollyard(is_asked: ShowVersion = False) -> None:
    """Take the options that stand before a command."""


@app.command("up")
def up(
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for every one.")] = "127.0.0.1",
    port: Annotated[str, typer.Option(help="A number, or auto.")] = "",
    gateway_port: Annotated[str, typer.Option(help="Of the gateway for sessions: a number, or auto.")] = "",
    lines_port: Annotated[str, typer.Option(help="For workers on other machines: a number, or auto.")] = "",
    concurrency: Annotated[int, typer.Option(min=0, help="Episode drivers that play side by side here.")] = 8,
    web_processes: Annotated[int, typer.Option(min=1, help="Web processes that share the port.")] = 2,
    exit_with_run: Annotated[str, typer.Option(metavar="KEY", help="Stop when this run ends, with its result.")] = "",
    quiet: Annotated[bool, typer.Option(help="Keep the processes' output in the log file.")] = False,
    as_json: Json = False,
) -> None:
    """Start everything here: database, Redis, web, worker, gateway, reconciler."""
    from controlplane.safety import UnsafeSettings
    from controlplane.up import start
    from controlplane.up.processes import Program
    from controlplane.up.supervisor import StartError

    options = start.Options(
        host=host,
        port=_port(port, "--port"),
        gateway_port=_port(gateway_port, "--gateway-port"),
        concurrency=concurrency,
        lines_port=_port(lines_port, "--lines-port"),
        web_processes=web_processes,
        quiet=quiet,
        as_json=as_json,
        job=Program("run", (*start.MANAGE, "runs", "wait", exit_with_run)) if exit_with_run else None,
    )
    try:
        status = start.run(Home.from_environ(), options)
    except (start.AlreadyUp, StartError, UnsafeSettings) as error:
        fail(str(error))
    raise typer.Exit(status)


def _port(given: str, option: str) -> int | None:
    try:
        return port_of(given)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


@app.command("prepare", hidden=True)
def prepare(login_digest: Annotated[str, typer.Option()] = "") -> None:
    """Migrate, collect static files, make the admin: what `up` does before the web process starts."""
    connect(check_database=False)
    from controlplane.up import prepare

    prepare.prepare(login_digest)


@app.command("login-link")
def login_link(
    user: Annotated[str, typer.Option(help="Who the link signs in.")] = "admin", as_json: Json = False
) -> None:
    """Print a link that signs in once."""
    connect()
    from django.conf import settings
    from django.contrib.auth.models import User

    from controlplane.web import login

    found = User.objects.filter(username=user, is_active=True).first()
    if found is None:
        fail(f"no active user {user!r}")
    url = settings.ROLLYARD_URL + login.issue(found)
    print_json({"login_url": url}) if as_json else say(url)


@app.command("launch")
def launch(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PRESET | FILE.toml] [KEY=VALUE]...",
            help="A preset or a file, and overrides.",
            autocompletion=complete_launch,
        ),
    ] = None,
    file: Annotated[list[Path] | None, typer.Option(help="TOML; the last wins.")] = None,
    project: Project = "default",
    fork_from: Annotated[
        str, typer.Option(metavar="RUN[@STEP]", help="Start from a checkpoint of this run; the newest without a step.")
    ] = "",
    fork_optimizer: Annotated[bool, typer.Option(help="Take its optimizer state too.")] = False,
    make_model: Annotated[
        bool, typer.Option("--make-model", help="Where a preset makes the run's model and nobody did: do it first.")
    ] = False,
    follow: Annotated[bool, typer.Option(help="Print progress until the run ends.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the config and the commands it comes to; start nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Launch a run from a preset, files and overrides such as `optimizer.lr=1e-4`."""
    from controlplane.cli.launching import read_launch
    from trainers.config import ConfigError, preset_names

    if not words and not file:
        known = ", ".join(preset_names())
        raise typer.BadParameter(f"name a preset ({known}), a --file, or values", param_hint="PRESET")
    if fork_from or not dry_run:
        connect()
    try:
        resolved, fork = read_launch(
            words or [],
            file or [],
            project=None if dry_run else project,
            fork_from=fork_from,
            fork_optimizer=fork_optimizer,
        )
    except ConfigError as error:
        if as_json:
            faults = [{"key": path, "message": message, "suggestion": meant} for path, message, meant in error.problems]
            print_json({"problems": faults})
        fail(str(error))
    if dry_run:
        from controlplane.cli import dry_run as dry

        dry.show(resolved, as_json=as_json)
        return
    from django.conf import settings

    from controlplane.cli import follow as following
    from rollouts.errors import ControlPlaneError

    def show(line: str) -> None:
        say(line, err=as_json)

    try:
        run = models.launch(project_of(project), resolved, fork=fork, make_model=make_model, show=show)
    except ControlPlaneError as error:
        if as_json:
            faults = [{"key": path, "message": message, "suggestion": ""} for path, message in error.fields.items()]
            print_json({"problems": faults})
        fail(complaint(error))
    if as_json:
        addresses = {"url": f"{settings.ROLLYARD_URL}/runs/{run.key}", "atropos_url": None}
        if run.kind in {"rl", "external"}:  # nothing from outside takes part in the others
            addresses |= {"atropos_url": run.address.url, "atropos_expires_at": run.address.expires_at.isoformat()}
        print_json({"run": run.key, "state": run.state, **addresses})
    else:
        say(f"{run.key}  {settings.ROLLYARD_URL}/runs/{run.key}")
        if run.kind == "external":
            say(f"environments and trainers that speak the Atropos protocol: {run.address.url}")
            say(f"it opens the run until {run.address.expires_at:%Y-%m-%d}, for whoever knows it")
    if follow:
        raise typer.Exit(following.follow(run.key, show))


@runs_app.command("list")
def list_runs(limit: Annotated[int, typer.Option(min=1, max=1000)] = 20, as_json: Json = False) -> None:
    """List the newest runs."""
    connect()
    from rollouts.models import Run

    rows = [_run_row(run) for run in Run.objects.order_by("-id")[:limit]]
    list_rows(rows, _run_line, "There is no run yet: `rollyard launch PRESET` makes one.", as_json)


@runs_app.command("show")
def show_run(key: RunKey, as_json: Json = False) -> None:
    """Show one run: state, progress, config and where each value came from, last events."""
    connect()
    from rollouts.selectors import events

    run = run_of(key)
    origins = {name: str(origin) for name, origin in run.origins.items()}
    recent = [
        {"at": each.at.isoformat(), "kind": each.object_kind, "state": each.to_state, **_why(each)}
        for each in events.list_recent(run, limit=10)
    ]
    if as_json:
        print_json({**_run_row(run), "config": run.config, "origins": origins, "events": recent})
        return
    for name, value in _run_row(run).items():
        say(f"{name:<10} {value}")
    for key_, origin in sorted(origins.items()):
        say(config_line(run.config, key_, origin))
    for event in recent:
        say(f"{event['at']} {event['kind']} {event['state']} {event['reason']}")


@runs_app.command("summary")
def summarise_run(key: RunKey, as_json: Json = False) -> None:
    """Print a run's result in a dozen numbers: did it learn, how fast, who waited for whom."""
    connect()
    from dataclasses import asdict

    from rollouts.selectors import summary

    numbers = {"run": key, **asdict(summary.summarise(run_of(key)))}
    if as_json:
        print_json(numbers)
        return
    for name, value in numbers.items():
        say(f"{name:<22} {value}")


@runs_app.command("stop")
def stop_run(key: RunKey, reason: Annotated[str, typer.Option()] = "", as_json: Json = False) -> None:
    """Ask a run to end now."""
    connect()
    from rollouts.errors import StateConflict
    from rollouts.services.runs import life

    try:
        run = life.request_stop(run_of(key), actor=actor(), reason=reason)
    except StateConflict as error:
        fail(str(error))
    print_json(_run_row(run)) if as_json else say(f"{run.key} is {run.state}")


@runs_app.command("wait")
def wait_run(key: RunKey, quiet: Annotated[bool, typer.Option(help="Print nothing.")] = False) -> None:
    """Print progress until a run ends; the exit status is 0 when it finished."""
    connect()
    from controlplane.cli import follow

    run_of(key)
    raise typer.Exit(follow.follow(key, lambda line: None if quiet else say(line)))


def _run_line(row: dict[str, Any]) -> str:
    return f"{row['run']:<24} {row['kind']:<4} {row['state']:<10} {row['step']:>6}/{row['max_steps']}  {row['name']}"


def _run_row(run: Any) -> dict[str, Any]:
    return {
        "run": run.key,
        "name": run.name,
        "kind": str(run.kind),
        "state": str(run.state),
        **_why(run),
        "step": run.next_step,
        "max_steps": run.max_steps,
        "created_at": run.created_at.isoformat(),
    }


def _why(row: Any) -> dict[str, str]:
    return {"reason": str(row.reason or ""), "reason_code": row.reason_code}


groups.register(app)

if __name__ == "__main__":
    main()
