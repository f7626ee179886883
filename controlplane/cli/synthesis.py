"""The command that has a teacher play environments and keeps the best of it as data for supervised training."""

from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any

import typer

from controlplane.cli.curation import write_examples
from controlplane.cli.evals import launched
from controlplane.cli.terminal import (
    Json,
    Project,
    connect,
    fail,
    options_given,
    print_json,
    run_of,
    say,
)

_LAUNCHED_WITH = {"env", "problems", "samples", "temperature", "max_tokens", "max_turns", "name", "override"}
"""Parameters of the run; what its file has is chosen each time that one is written."""


def register(app: typer.Typer) -> None:
    """Add the command to a program."""
    app.command("synthesize")(synthesize)


def synthesize(
    context: typer.Context,
    teacher: Annotated[
        str,
        typer.Argument(metavar="TEACHER", help="A model, RUN@STEP, endpoint:NAME; or the key of a synthesis to go on."),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", dir_okay=False, help="File: JSONL, gzipped if it ends in .gz; or .parquet."),
    ],
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME[:JSON]", help="Environment, with arguments; repeat for more.")
    ] = None,
    problems: Annotated[int, typer.Option("-n", "--problems", min=1, help="Training problems of each.")] = 100,
    samples: Annotated[int, typer.Option("-k", "--samples", min=1, help="Rollouts of each problem.")] = 4,
    min_reward: Annotated[float, typer.Option(help="Only rollouts with at least this reward.")] = 1.0,
    best: Annotated[int, typer.Option(min=0, help="Most rollouts of each problem, the best; 0: all.")] = 1,
    truncated: Annotated[bool, typer.Option("--truncated", help="Also rollouts that a token budget ended.")] = False,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 1.0,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Per turn. [default: the run's, or 512]")] = None,
    max_turns: Annotated[int | None, typer.Option(min=1, help="[default: the run's, or 16]")] = None,
    name: Annotated[str, typer.Option(help="Of the run that it is.")] = "",
    override: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A value of the run's config; repeat.")
    ] = None,
    project: Project = "default",
    as_json: Json = False,
) -> None:
    """Let a teacher play training problems, and write its best rollouts as data for SFT, each with where it is from.

    It is an eval run on the training split: it goes on when this command is interrupted. The command with the run's key
    in place of the teacher, and without what it was launched with, follows it to its end and writes the file.
    """
    _check_place(output)
    connect()
    from django.conf import settings

    from controlplane.cli import follow as following
    from rollouts.models import Run
    from rollouts.services.curation import examples

    def show(line: str) -> None:
        say(line, err=True)

    if Run.objects.filter(key=teacher).exists():
        run = run_of(teacher)
        if given := options_given(context, _LAUNCHED_WITH):
            raise typer.BadParameter(f"run {run.key} stays what it was launched as: leave it out", param_hint=given)
    else:
        run = launched(
            teacher,
            env,
            override,
            project,
            samples=samples,
            problems=problems,
            temperature=temperature,
            max_tokens=max_tokens,
            max_turns=max_turns,
            split="train",
            name=name,
        )
    if not examples.is_teaching(run):
        fail(f"run {run.key} is no synthesis; `rollyard export-sft {run.key}` writes the best of any run")
    show(f"{run.key}  {settings.ROLLYARD_URL}/evaluations/{run.key}")
    if following.follow(run.key, show):
        fail(f"run {run.key} did not finish; `rollyard export-sft {run.key}` writes what there is of it")
    selection, surplus = examples.Selection(best=best or None, min_reward=min_reward, truncated=truncated), 0

    def leave(count: int) -> None:
        nonlocal surplus
        surplus += count

    lines = write_examples(run, selection, output, states=examples.curated_states(run), on_surplus=leave)
    told = _account(run, min_reward) | {"surplus": surplus, "examples": lines, "file": str(output)}
    if as_json:
        print_json({"run": run.key, **told})
    else:
        for key, value in told.items():
            say(f"{key:<10} {value}")
    if not lines:
        lower = "--min-reward asks for less, --samples for more rollouts of each problem"
        fail(f"{output} is empty: no rollout that was played to its end earned {min_reward:g}; {lower}")


def _check_place(output: Path) -> None:
    """End before anything is played if its file could not be written."""
    try:
        with TemporaryFile(dir=output.parent):
            pass
    except OSError as error:
        fail(f"{output}: nothing can be written in {output.parent}: {error.strerror or error}.")


def _account(run: Any, min_reward: float) -> dict[str, int]:
    """What the teacher played, and why not all of it is in the file."""
    from rollouts.selectors import evaluations

    figures = [row.figures or {} for row in evaluations.of_runs([run])[run.pk]]
    counted = {key: sum(each.get(key, 0) for each in figures) for key in ("problems", "rollouts", "tokens")}
    lost = {key: sum(each.get(key, 0) for each in figures) for key in ("failed", "truncated", "out_of_turns")}
    return counted | lost | {"too_low": evaluations.below(run, min_reward)}
