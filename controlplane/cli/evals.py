"""Commands about evaluations: launch one, look at what was found, compare two."""

import json
from typing import Annotated, Any

import msgspec
import typer

from controlplane.cli.completion import RunKey
from controlplane.cli.models import absolute_args, absolute_place
from controlplane.cli.terminal import (
    Json,
    Project,
    actor,
    complaint,
    connect,
    fail,
    list_rows,
    print_json,
    project_of,
    run_of,
    say,
)

_app = typer.Typer(no_args_is_help=True, help="Look at evaluations and compare them.")


def register(app: typer.Typer) -> None:
    """Add the commands to a program."""
    app.command("eval")(evaluate)
    app.add_typer(_app, name="evaluations")


def evaluate(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="TARGET...",
            help="Models; checkpoints: RUN@STEP, RUN@STEP,STEP or RUN@* (quote it); endpoints: endpoint:NAME.",
        ),
    ],
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[:JSON]", help="Environment, with arguments; repeat for more. [default: the run's]"),
    ] = None,
    samples: Annotated[int, typer.Option("-k", "--samples", min=1, help="Rollouts of each problem.")] = 1,
    problems: Annotated[int, typer.Option(min=1, help="Of each environment, and no more than it has.")] = 100,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 1.0,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Per turn. [default: the run's, or 512]")] = None,
    max_turns: Annotated[int | None, typer.Option(min=1, help="[default: the run's, or 16]")] = None,
    threshold: Annotated[float, typer.Option(help="Reward from which a rollout is right.")] = 1.0,
    name: Annotated[str, typer.Option(help="Of the run that it is.")] = "",
    override: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A value of the run's config; repeat.")
    ] = None,
    project: Project = "default",
    follow: Annotated[bool, typer.Option(help="Print progress until it ends, then the figures.")] = False,
    as_json: Json = False,
) -> None:
    """Measure models, checkpoints or endpoints, a run each: avg@k, pass@k, pass^k with intervals; errors, tokens."""
    if name and len(targets) > 1:
        raise typer.BadParameter("is of one run, and there are several targets", param_hint="--name")
    connect()
    from django.conf import settings

    from controlplane.cli import follow as following

    def show(line: str) -> None:
        say(line, err=as_json)

    runs = []
    for target in targets:
        run = launched(
            target,
            env,
            override,
            project,
            samples=samples,
            problems=problems,
            temperature=temperature,
            max_tokens=max_tokens,
            max_turns=max_turns,
            threshold=threshold,
            name=name,
        )
        runs.append(run)
        url = f"{settings.ROLLYARD_URL}/evaluations/{run.key}"
        print_json({"run": run.key, "url": url}) if as_json and not follow else show(f"{run.key}  {url}")
    if not follow:
        return
    status = 0
    for run in runs:
        status = following.follow(run.key, show) or status
        _show(run, as_json)
    raise typer.Exit(status)


def launched(target: str, env: list[str] | None, override: list[str] | None, project: str, **asked: Any) -> Any:
    """The eval run of a target, just launched; `asked` are further fields of `EvaluationIn`. Ends the program where it
    cannot be."""
    from rollouts.errors import ControlPlaneError
    from rollouts.models import Run
    from rollouts.services.runs import evaluating, projects
    from trainers.config import ConfigError, parse_override
    from trainers.origins import COMMAND_LINE

    try:
        wanted = evaluating.EvaluationIn(
            target=absolute_place(target),
            environments=[environment_of(text) for text in env or []],
            overrides=dict(map(parse_override, override or [])),
            **asked,
        )
        return evaluating.launch(
            wanted,
            project=project_of(project),
            user=projects.ensure_admin(),
            actor=actor(),
            forkable=Run.objects.all(),
            origin=COMMAND_LINE,
        )
    except ConfigError as error:
        fail(str(error))
    except ControlPlaneError as error:
        fail(complaint(error))


@_app.command("list")
def list_evaluations(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Most rows.")] = 20, as_json: Json = False
) -> None:
    """List the newest evaluations: number, run, environment and version, state, mean reward."""
    connect()
    from rollouts.models import Evaluation
    from rollouts.selectors import evaluations

    found = evaluations.with_relations(Evaluation.objects.order_by("-id"))[:limit]
    rows = [{"run": row.run.key, **evaluations.told(row)} for row in found]
    list_rows(rows, _line, "There is no evaluation yet: `rollyard eval TARGET` makes one.", as_json)


@_app.command("show")
def show_evaluations(run: RunKey, as_json: Json = False) -> None:
    """Print what a run's evaluations found, by environment and version."""
    connect()
    _show(run_of(run), as_json)


@_app.command("compare")
def compare_evaluations(
    first: Annotated[int, typer.Argument(metavar="FIRST", help="Number of an evaluation, as `show` prints it.")],
    second: Annotated[int, typer.Argument(metavar="SECOND", help="Of the one that may be better.")],
    as_json: Json = False,
) -> None:
    """Print how much better the second is, problem by problem, with the interval of the difference."""
    connect()
    from rollouts.errors import ControlPlaneError
    from rollouts.models import Evaluation
    from rollouts.selectors import evaluations

    rows = {row.pk: row for row in evaluations.with_relations(Evaluation.objects.filter(pk__in=[first, second]))}
    if missing := sorted({first, second} - rows.keys()):
        fail(f"no evaluation {missing[0]}")
    try:
        found = evaluations.compare(rows[first], rows[second])
    except ControlPlaneError as error:
        fail(complaint(error))
    if as_json:
        print_json(evaluations.told_difference(found))
        return
    say(f"{found.estimate or 'no problem is in both'}  over {found.pairs} problems")
    say(f"better on {found.better}, worse on {found.worse}")
    if found.only_first or found.only_second:
        say(f"scored in one alone: {found.only_first} in the first, {found.only_second} in the second")
    if found.caution:
        say(found.caution)


def _show(run: Any, as_json: bool) -> None:
    from environments.estimates import Estimate
    from rollouts.selectors import evaluations

    rows = evaluations.of_runs([run])[run.pk]
    if as_json:
        print_json({"run": run.key, "evaluations": [evaluations.told(row) for row in rows]})
        return
    for row in rows:
        say(f"{row.pk}  {row.environment} v{row.measured}  {row.state}, {row.cursor} of {row.problems} problems begun")
        for key, value in (row.figures or {}).items():
            if isinstance(value, dict) and "low" in value:
                estimate = Estimate(value["value"], value["low"], value["high"])
                say(f"    {key:<10} {estimate} of {value['problems']} problems")
            elif value:
                say(f"    {key:<10} {json.dumps(value)}")


def _line(row: dict[str, Any]) -> str:
    mean = "" if row["reward_mean"] is None else f"{row['reward_mean']:.3f}"
    what = f"{row['environment']} v{row['version']}"
    return f"{row['evaluation']:>8}  {row['run']:<24} {what:<28} {row['state']:<10} {mean}"


def environment_of(text: str) -> Any:
    """An environment as the command line names it, NAME or NAME:JSON. Raises typer.BadParameter."""
    from rollouts.services.runs import evaluating

    try:
        found = evaluating.environment_of(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--env") from None
    return msgspec.structs.replace(found, args=absolute_args(found))
