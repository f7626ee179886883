"""Commands about workers on other machines, as jobs of SLURM."""

import json
import os
from typing import Annotated, Any
from urllib.parse import parse_qs, quote, urlsplit

import typer

from controlplane.cli.terminal import Json, connect, fail, print_json, say

_app = typer.Typer(no_args_is_help=True, help="Workers as jobs of SLURM, which play the episodes of runs.")
_CONNECTIONS = 4
"""To the database, of a worker on another machine at most."""
_TLS = {"require", "verify-ca", "verify-full"}


def register(app: typer.Typer) -> None:
    """Add the commands to a program."""
    app.add_typer(_app, name="workers")


@_app.command("start")
def start(
    count: Annotated[int, typer.Argument(min=1, max=1000, help="How many jobs.")] = 1,
    template: Annotated[str, typer.Option(help="Of cluster.toml.")] = "default",
    cores: Annotated[int, typer.Option(min=0, help="Of each; 0: as the template says.")] = 0,
    memory_gib: Annotated[float, typer.Option(min=0, help="Of each; 0: as the template says.")] = 0.0,
    hours: Annotated[float, typer.Option(min=0, help="Of each; 0: as the template says.")] = 0.0,
    concurrency: Annotated[int, typer.Option(min=1, help="Runs that each plays side by side.")] = 8,
    as_json: Json = False,
) -> None:
    """Give SLURM jobs of workers. Each plays episodes of any run until its time is over, or it is stopped."""
    connect()
    from django.conf import settings

    from workers.launchers.base import JobSize
    from workers.slurm import queue, templates, workers

    try:
        found = templates.read(settings.ROLLYARD_HOME, template)
        given = {
            "environ": _environ(is_shared=found.shared),
            "lines": _lines(),
            "hours": hours or found.hours,
            "concurrency": concurrency,
        }
        need = JobSize(cores=cores, memory_gib=memory_gib, hours=hours)
        numbers = [workers.start(settings.ROLLYARD_HOME, found, need, given) for _ in range(count)]
    except (templates.TemplateError, queue.SlurmAway, queue.SlurmRefused) as error:
        fail(str(error))
    print_json({"jobs": numbers}) if as_json else say(f"jobs {', '.join(numbers)} were given to SLURM")


@_app.command("list")
def list_workers(as_json: Json = False) -> None:
    """List the jobs of workers that wait or play."""
    connect()
    from workers.slurm import queue, workers

    try:
        jobs = workers.listed().values()
    except (queue.SlurmAway, queue.SlurmRefused) as error:
        fail(str(error))
    rows = [{"job": job.number, "state": job.state.lower(), "node": job.node, "because": job.because} for job in jobs]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        say(f"{row['job']:<10} {row['state']:<12} {row['node'] or row['because']}")
    if not rows:
        say("no worker is a job: `rollyard workers start` makes some")


@_app.command("stop")
def stop(as_json: Json = False) -> None:
    """End all of them. What they play is handed back and played by others."""
    connect()
    from workers.slurm import queue, workers

    try:
        count = workers.stop()
    except (queue.SlurmAway, queue.SlurmRefused) as error:
        fail(str(error))
    print_json({"stopped": count}) if as_json else say(f"{count} jobs of workers are told to end")


def _environ(*, is_shared: bool) -> dict[str, str]:
    """What a worker is told: it is a part of the control plane, and has its secrets."""
    from django.conf import settings

    told = {
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "ROLLYARD_SECRET_KEY": settings.SECRET_KEY,
        "ROLLYARD_URL": settings.ROLLYARD_URL,
        "ROLLYARD_NODES_URL": settings.NODES_URL,
        # The embedded PostgreSQL takes 120 connections of all of us together.
        "ROLLYARD_DATABASE_POOL_SIZE": os.environ.get("ROLLYARD_DATABASE_POOL_SIZE", str(_CONNECTIONS)),
        # Celery warns root at every start; here root is what the person chose, and the messages are JSON.
        "PYTHONWARNINGS": "ignore:You're running the worker",
    }
    told |= {name: os.environ[name] for name in ("DATABASE_URL", "REDIS_URL") if os.environ.get(name)}
    return told | ({"ROLLYARD_HOME": str(settings.ROLLYARD_HOME)} if is_shared else {})


def _lines() -> dict[str, Any] | None:
    """The way to the embedded servers; None where both are servers of their own, which are reached as they are."""
    from django.conf import settings

    from controlplane import certificate
    from controlplane.home import APPLICATION, DATABASE
    from workers.fleet.keys import key_of_lines

    database, redis = os.environ.get("DATABASE_URL", ""), os.environ.get("REDIS_URL", "")
    if database and redis:
        if parse_qs(urlsplit(database).query).get("sslmode", [""])[0] not in _TLS:
            fail("DATABASE_URL goes over the network in the clear: add ?sslmode=verify-full&sslrootcert=FILE to it")
        if urlsplit(redis).scheme != "rediss":
            fail("REDIS_URL goes over the network in the clear: write rediss://")
        return None
    home = settings.HOME
    try:
        address = json.loads(home.record_file.read_text())["lines"]
    except (OSError, ValueError, KeyError):
        address = None
    if not address:
        fail("workers reach the embedded servers by `rollyard up --lines-port auto`, or set DATABASE_URL and REDIS_URL")
    pem, _ = certificate.files(home)
    passwords = [quote(each, safe="") for each in (home.database_password(APPLICATION), home.redis_password())]
    return {
        "address": address,
        "certificate": pem.read_text(),
        "key": key_of_lines(),
        "database": f"postgresql://{APPLICATION}:{passwords[0]}@/{DATABASE}?host={{place}}",
        "redis": f"unix://:{passwords[1]}@{{place}}/redis.sock?db=0",
    }
