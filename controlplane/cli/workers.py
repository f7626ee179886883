"""Commands about workers on other machines, as jobs of SLURM."""

from typing import Annotated, Any

import typer

from controlplane.cli.terminal import Json, connect, fail, list_rows, print_json, say

_app = typer.Typer(no_args_is_help=True, help="Workers as jobs of SLURM, which play the episodes of runs.")


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
    concurrency: Annotated[
        int, typer.Option(min=1, max=1000, help="Runs that each is told of side by side; it looks for others.")
    ] = 8,
    connections: Annotated[int, typer.Option(min=1, max=100, help="To the database, of each at most.")] = 4,
    as_json: Json = False,
) -> None:
    """Give SLURM jobs of workers. Each plays episodes of any run until its time is over, or it is stopped. Those that
    `[workers.NAME]` in cluster.toml asks for are started without this."""
    connect()
    from django.conf import settings

    from workers.fleet.keys import mark_of_workers
    from workers.given import NoWay, given
    from workers.slurm import queue, templates, workers

    pool = templates.WorkerPool(
        template=template,
        cores=cores,
        memory_gib=memory_gib,
        hours=hours,
        concurrency=concurrency,
        connections=connections,
    )
    try:
        found = templates.read(settings.ROLLYARD_HOME, template)
        all_given = given(pool, found)
        numbers = workers.start(settings.ROLLYARD_HOME, mark_of_workers(), found, pool.need, all_given, count)
    except (templates.TemplateError, queue.SlurmAway, queue.SlurmRefused, NoWay) as error:
        fail(_complaint(error))
    print_json({"jobs": numbers}) if as_json else say(f"jobs {', '.join(numbers)} were given to SLURM")


@_app.command("list")
def list_workers(as_json: Json = False) -> None:
    """List the jobs of workers that wait or play."""
    connect()
    from workers.fleet.keys import mark_of_workers
    from workers.slurm import queue, workers

    try:
        jobs = workers.listed(mark_of_workers())
    except (queue.SlurmAway, queue.SlurmRefused) as error:
        fail(_complaint(error))
    rows = [
        {
            "job": job.number,
            "pool": workers.pool_of(token),
            "state": job.state.lower(),
            "node": job.node,
            "because": job.because,
        }
        for token, job in jobs.items()
    ]
    none = "No worker is a job: `rollyard workers start` makes some, and so does [workers.NAME] in cluster.toml."
    list_rows(rows, _line, none, as_json)


@_app.command("stop")
def stop(as_json: Json = False) -> None:
    """End all of them. What they play is handed back and played by others. Those of pools come back unless cluster.toml
    asks for none."""
    connect()
    from django.conf import settings

    from workers.fleet.keys import mark_of_workers
    from workers.slurm import queue, templates, workers

    try:
        pools = [name for name, pool in templates.worker_pools(settings.ROLLYARD_HOME).items() if pool.most]
        count = workers.stop(mark_of_workers())
    except (templates.TemplateError, queue.SlurmAway, queue.SlurmRefused) as error:
        fail(_complaint(error))
    if as_json:
        print_json({"stopped": count, "pools": pools})
        return
    say(f"{count} jobs of workers are told to end")
    if pools:
        file = settings.ROLLYARD_HOME / templates.FILE
        say(f"those of {', '.join(pools)} come back: take [workers.NAME] out of {file}")


def _line(row: dict[str, Any]) -> str:
    return f"{row['job']:<10} {row['pool'] or '-':<16} {row['state']:<12} {row['node'] or row['because']}"


def _complaint(error: Exception) -> str:
    """What SLURM or the file of templates says; where there is no SLURM, first what it is wanted for."""
    from workers.slurm import queue

    if not isinstance(error, queue.SlurmAway):
        return str(error)
    wanted = "these workers are jobs of SLURM, which does not answer (docs/cluster.md says what it takes)"
    return f"{wanted}: {str(error).rstrip('. ;:')}"
