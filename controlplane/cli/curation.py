"""Commands about what people say of rollouts, and what is to be learned from: import words, export examples."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from controlplane.cli import exports
from controlplane.cli.completion import RunKey
from controlplane.cli.data import known_states, writing
from controlplane.cli.progress import progress
from controlplane.cli.terminal import Json, Project, actor, connect, fail, print_json, run_of, say


def register(app: typer.Typer) -> None:
    """Add the commands to a program, exports also under the names that commands of Django have."""
    app.command("import-labels")(import_labels)
    app.command("export-sft")(export_sft)
    app.command("export_sft", hidden=True)(export_sft)


def import_labels(
    run: RunKey,
    files: Annotated[
        list[Path],
        typer.Argument(exists=True, dir_okay=False, help="JSONL of ours; JSON of Label Studio or Argilla."),
    ],
    person: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=ACCOUNT", help="Whose words those of somebody in the file are; repeat for more."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="End at the first bad line.")] = False,
    as_json: Json = False,
) -> None:
    """Store what people said of a run's groups elsewhere: each word once, however often it is imported."""
    if wrong := [each for each in person or [] if "=" not in each]:
        raise typer.BadParameter(f"{wrong[0]} is no NAME=ACCOUNT", param_hint="--person")
    connect()
    from rollouts.services.curation import importing, word_files
    from rollouts.services.runs import projects

    row = run_of(run)
    people = dict(each.split("=", 1) for each in person or [])

    def tell(at: str, fault: str) -> None:
        say(f"{at}: {fault}", err=True)
        if strict:
            fail("ended at the first bad line; what stands before it is stored, and is known the next time")

    total = importing.ImportedWords()
    for path in files:
        done = importing.import_words(
            row,
            word_files.words_of(path.read_bytes(), str(path)),
            user=projects.ensure_admin(),
            actor=actor(),
            people=people,
            on_bad=tell,
        )
        total = importing.ImportedWords(total.stored + done.stored, total.known + done.known, total.bad + done.bad)
    if as_json:
        print_json({"run": row.key, "stored": total.stored, "known": total.known, "bad": total.bad})
    else:
        say(f"{total.stored} stored, {total.known} known, {total.bad} bad")
    raise typer.Exit(1 if total.bad else 0)


def export_sft(
    context: typer.Context,
    source: exports.Source,
    output: exports.Output = None,
    pairs: Annotated[bool, typer.Option("--pairs", help="Best beside worst of each group, for DPO.")] = False,
    best: Annotated[int, typer.Option(min=0, help="Most rollouts of each group, the best; 0: all.")] = 1,
    min_reward: Annotated[float | None, typer.Option(help="Only rollouts with at least this reward.")] = None,
    min_gap: Annotated[float, typer.Option(min=0, help="Of a pair: rewards differ by more than this.")] = 0.0,
    truncated: Annotated[bool, typer.Option("--truncated", help="Also rollouts that a token budget ended.")] = False,
    state: Annotated[
        list[str] | None, typer.Option(help="State of the groups; repeat for more. [default: all but rejected ones]")
    ] = None,
    environment: exports.Environment = None,
    name: Annotated[
        str, typer.Option("--as", metavar="NAME", help="Make a version of this dataset of a run, and write that.")
    ] = "",
    split: exports.Split = exports.OneSplit.TRAIN,
    file_format: exports.Format = exports.Kind.PARQUET,
    push: exports.Push = "",
    project: Project = "default",
    as_json: Json = False,
) -> None:
    """Write a version of a dataset as data for SFT, or what is best in a run now; stdout without a file.

    A file appears when it is complete. Of a version, the same command goes on after an interruption.
    """
    if "@" in source or name:
        if pairs:
            fail("pairs of a version are written by export-dpo")
        exports.refuse_to_choose(context, source)
        recipe: dict[str, Any] = {"best": best or None, "min_reward": min_reward}
        recipe |= {"truncated": truncated, "environment": environment or ""}
        exports.export("sft", source, recipe, state, name, output, split, file_format, push, project, as_json=as_json)
        return
    is_whole = split is exports.OneSplit.TRAIN and file_format is exports.Kind.PARQUET
    if push or not is_whole or (output is not None and not exports.is_file(output)):
        only = "only a version of a dataset has --split, --format and --push, and is written to a directory"
        fail(f"{only}: name one with --as, or a file with a suffix (-o examples.jsonl)")
    if as_json and output is None:
        raise typer.BadParameter("would mix with the examples: give a file too (-o)", param_hint="--json")
    connect()
    from rollouts.services.curation import examples

    row = run_of(source)
    states = known_states(state) or list(examples.curated_states(row))
    selection = examples.Selection(best=best or None, min_reward=min_reward, min_gap=min_gap, truncated=truncated)
    unit = "pairs" if pairs else "examples"
    written = write_examples(row, selection, output, pairs=pairs, states=states, environment=environment)
    if as_json:
        print_json({"run": row.key, unit: written, "file": str(output)})
    else:
        say(f"{written} {unit} of run {row.key}", err=True)


def write_examples(
    run: Any,
    selection: Any,
    output: Path | None,
    *,
    pairs: bool = False,
    states: Sequence[str],
    environment: str | None = None,
    on_surplus: Callable[[int], None] = lambda count: None,
) -> int:
    """Write the selected rollouts of a run, in the format that the file's name says; how many lines they are.

    `on_surplus` is that of `export_examples`.
    """
    from rollouts.formats.tables import ParquetLines, Untabular
    from rollouts.services.curation import examples, exchange

    export = examples.export_pairs if pairs else partial(examples.export_examples, on_surplus=on_surplus)
    unit = "pairs" if pairs else "examples"
    written = 0
    total = exchange.exportable(run, states=states, environment=environment).count()
    is_table = output is not None and output.suffix == ".parquet"
    try:
        with (
            progress(total) as meter,
            writing(output) as file,
            ParquetLines(file, "pairs" if pairs else "examples") if is_table else nullcontext(file) as lines,
        ):
            for line in export(run, selection, states=states, environment=environment):
                lines.write(line)
                written += 1
                meter.update(min(written, total), f"{written} {unit}")
    except Untabular as error:
        fail(str(error))
    return written
