"""The command that turns a run's rollouts into data for supervised training."""

from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli.completion import RunKey
from controlplane.cli.data import known_states, writing
from controlplane.cli.progress import progress
from controlplane.cli.terminal import Json, connect, print_json, run_of, say


def register(app: typer.Typer) -> None:
    """Add the command to a program, also under the name that commands of Django have."""
    app.command("export-sft")(export_sft)
    app.command("export_sft", hidden=True)(export_sft)


def export_sft(
    run: RunKey,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", dir_okay=False, help="File; gzipped if it ends in .gz.")
    ] = None,
    pairs: Annotated[bool, typer.Option("--pairs", help="Best beside worst of each group, for DPO.")] = False,
    best: Annotated[int, typer.Option(min=0, help="Most rollouts of each group, the best; 0: all.")] = 1,
    min_reward: Annotated[float | None, typer.Option(help="Only rollouts with at least this reward.")] = None,
    min_gap: Annotated[float, typer.Option(min=0, help="Of a pair: rewards differ by more than this.")] = 0.0,
    truncated: Annotated[bool, typer.Option("--truncated", help="Also rollouts that a token budget ended.")] = False,
    state: Annotated[
        list[str] | None, typer.Option(help="State of the groups; repeat for more. [default: all but rejected ones]")
    ] = None,
    environment: Annotated[str | None, typer.Option(metavar="NAME", help="Only groups of this one.")] = None,
    as_json: Json = False,
) -> None:
    """Write a run's best rollouts as JSONL to train on; stdout without a file. A file appears when it is complete."""
    if as_json and output is None:
        raise typer.BadParameter("would mix with the examples: give a file too (-o)", param_hint="--json")
    connect()
    from rollouts.services.curation import examples, exchange

    row = run_of(run)
    states = known_states(state) or list(examples.CURATED)
    selection = examples.Selection(best=best or None, min_reward=min_reward, min_gap=min_gap, truncated=truncated)
    export = examples.export_pairs if pairs else examples.export_examples
    unit = "pairs" if pairs else "examples"
    written = 0
    total = exchange.exportable(row, states=states, environment=environment).count()
    with progress(total) as meter, writing(output) as file:
        for line in export(row, selection, states=states, environment=environment):
            file.write(line)
            written += 1
            meter.update(min(written, total), f"{written} {unit}")
    if as_json:
        print_json({"run": row.key, unit: written, "file": str(output)})
    else:
        say(f"{written} {unit} of run {row.key}", err=True)
