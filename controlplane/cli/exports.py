"""The commands that write a version of a dataset to files: of one that is there, or that is made of a run first."""

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from controlplane.cli.data import first_missing, known_states, open_to_runs
from controlplane.cli.progress import progress
from controlplane.cli.terminal import (
    Json,
    Project,
    actor,
    complaint,
    connect,
    fail,
    options_given,
    print_json,
    project_of,
    run_of,
    say,
)

Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="File: JSONL, gzipped if it ends in .gz; or .parquet. Without a dot: a directory that `datasets` loads.",
    ),
]
Best = Annotated[int, typer.Option(min=0, help="Most of each group, the best; 0: all.")]
MinReward = Annotated[float | None, typer.Option(help="Only rollouts with at least this reward.")]
Truncated = Annotated[bool, typer.Option("--truncated", help="Also rollouts that a token budget ended.")]
State = Annotated[
    list[str] | None, typer.Option(help="State of the groups; repeat for more. [default: all but rejected ones]")
]
Environment = Annotated[str | None, typer.Option(metavar="NAME", help="Only groups of this one.")]
As = Annotated[
    str, typer.Option("--as", metavar="NAME", help="Dataset that a version is made in, of a run. [default: run-KEY]")
]
Push = Annotated[
    str, typer.Option(metavar="OWNER/NAME", help="Also push the directory to the hub, as a private data set.")
]


class OneSplit(StrEnum):
    """The split that a single file has."""

    TRAIN = "train"
    VALIDATION = "validation"


class Kind(StrEnum):
    """What the files of a directory are."""

    JSONL = "jsonl"
    PARQUET = "parquet"


Split = Annotated[OneSplit, typer.Option(help="Which split a file has; a directory has a file of each.")]
Format = Annotated[Kind, typer.Option("--format", help="What the files of a directory are.")]
Source = Annotated[
    str, typer.Argument(metavar="NAME@VERSION | RUN", help="A version of a dataset; or a run, of which one is made.")
]

_CHOOSING = {"best", "min_reward", "min_gap", "unwanted_below", "truncated", "state", "environment", "name"}
"""Parameters that say which rollouts of a run a version is made of, and what it is called."""


def register(app: typer.Typer) -> None:
    """Add the commands to a program, also under the names that commands of Django have."""
    for name, command in (("export-dpo", export_dpo), ("export-kto", export_kto)):
        app.command(name)(command)
        app.command(name.replace("-", "_"), hidden=True)(command)


def export_dpo(
    context: typer.Context,
    source: Source,
    output: Output = None,
    best: Best = 1,
    min_reward: MinReward = None,
    min_gap: Annotated[float, typer.Option(min=0, help="Rewards differ by more than this.")] = 0.0,
    truncated: Truncated = False,
    state: State = None,
    environment: Environment = None,
    name: As = "",
    split: Split = OneSplit.TRAIN,
    file_format: Format = Kind.PARQUET,
    push: Push = "",
    project: Project = "default",
    as_json: Json = False,
) -> None:
    """Write pairs of a better and a worse answer; stdout without a file. Interrupted, the same command goes on."""
    refuse_to_choose(context, source)
    recipe: dict[str, Any] = {"best": best or None, "min_reward": min_reward, "min_gap": min_gap}
    recipe |= {"truncated": truncated, "environment": environment or ""}
    export("dpo", source, recipe, state, name, output, split, file_format, push, project, as_json=as_json)


def export_kto(
    context: typer.Context,
    source: Source,
    output: Output = None,
    best: Best = 0,
    min_reward: MinReward = None,
    unwanted_below: Annotated[
        float | None, typer.Option(help="Rollouts with a lower reward are to be avoided; and what somebody rejects.")
    ] = None,
    truncated: Truncated = False,
    state: State = None,
    environment: Environment = None,
    name: As = "",
    split: Split = OneSplit.TRAIN,
    file_format: Format = Kind.PARQUET,
    push: Push = "",
    project: Project = "default",
    as_json: Json = False,
) -> None:
    """Write examples with whether each is wanted; stdout without a file. Interrupted, the same command goes on."""
    refuse_to_choose(context, source)
    recipe: dict[str, Any] = {
        "best": best or None,
        "min_reward": min_reward,
        "unwanted_below": unwanted_below,
        "rejected": True,
    }
    recipe |= {"truncated": truncated, "environment": environment or ""}
    export("kto", source, recipe, state, name, output, split, file_format, push, project, as_json=as_json)


def refuse_to_choose(context: typer.Context, source: str) -> None:
    """End the program where options would choose from a version, which is written as it was made."""
    if "@" in source and (given := options_given(context, _CHOOSING)):
        less = f"`rollyard datasets make NAME --version {source}` makes one that has less"
        raise typer.BadParameter(f"a version is written as it was made: leave it out, or {less}", param_hint=given)


def export(
    form: str,
    source: str,
    recipe: dict[str, Any],
    state: list[str] | None,
    name: str,
    output: Path | None,
    split: OneSplit,
    file_format: Kind,
    push: str,
    project: str,
    *,
    as_json: bool,
) -> None:
    """Write a version, after it was made if a run is named."""
    if as_json and output is None:
        raise typer.BadParameter("would mix with the rows: give a file too (-o)", param_hint="--json")
    if push and (output is None or is_file(output)):
        raise typer.BadParameter("pushes a directory: name one (-o)", param_hint="--push")
    connect()
    from rollouts.errors import ControlPlaneError

    try:
        if "@" in source:
            version = _version_of(source, project)
        else:
            version = _made(run_of(source), form, recipe, state, name)
            again = f"rollyard export-{form} {version}{version.dataset.project.command_option}"
            say(f"made {version}; if this is interrupted: {again} goes on", err=True)
        manifest = _write(version, form, output, split, file_format)
    except ControlPlaneError as error:
        fail(complaint(error))
    if push:
        assert output is not None
        _push(output, push)
    if as_json:
        print_json({**manifest, "version": str(version), "path": str(output)})
    else:
        rows = ", ".join(f"{count} {part}" for part, count in manifest["rows"].items())
        left_out = "".join(f", {count} {why} left out" for why, count in manifest["left_out"].items())
        say(f"{version}: {rows} rows{left_out}", err=True)


def is_file(output: Path) -> bool:
    """Whether a name is that of a file; without a dot in it it is a directory's."""
    return bool(output.suffix) and not output.is_dir()


def _version_of(named: str, project: str) -> Any:
    from rollouts.services.datasets import choosing

    return choosing.find_version(project_of(project), named)


def _made(run: Any, form: str, recipe: dict[str, Any], state: list[str] | None, name: str) -> Any:
    from rollouts.models import ExportForm
    from rollouts.services.datasets import making
    from rollouts.services.datasets.choosing import Recipe

    chosen = Recipe(runs=[run.key], states=known_states(state), **recipe)
    called = name or f"run-{run.key}"
    needs = ExportForm(form).needs
    return making.make(run.project, name=called, form=needs, recipe=chosen, actor=actor())


def _write(version: Any, form: str, output: Path | None, split: OneSplit, file_format: Kind) -> dict[str, Any]:
    from environments.types import Split as Splits
    from rollouts.formats.tables import Untabular
    from rollouts.models import ExportForm
    from rollouts.services.datasets import files, rendering

    chosen = ExportForm(form)
    wanted = Splits.TRAIN if split is OneSplit.TRAIN else Splits.EVAL
    if output is None:
        counts = {"rows": {split.value: 0}, "left_out": {}}
        for page in rendering.pages(version, chosen, splits=[wanted]):
            for _, row in page.rows:
                sys.stdout.buffer.write(row)
            counts["rows"][split.value] += len(page.rows)
        sys.stdout.buffer.flush()
        return counts
    made = first_missing(Path(os.path.abspath(output)))
    with progress(version.member_count) as meter:

        def told(at: Any) -> None:
            meter.update(at.members, f"{at.rows} rows")

        try:
            if is_file(output):
                manifest = files.write_file(version, chosen, output, split=wanted, told=told)
                written = [output, output.with_name(f"{output.name}.{files.MANIFEST}")]
            else:
                manifest = files.write_directory(version, chosen, output, suffix=f".{file_format}", told=told)
                written = [made]
        except Untabular as error:
            fail(str(error))
        except OSError as error:
            fail(f"{output}: {error.strerror or error}. The same command goes on where this ended.")
    open_to_runs(written)
    return manifest


def _push(directory: Path, repository: str) -> None:
    from huggingface_hub import HfApi

    if os.environ.get("HF_HUB_OFFLINE") == "1":
        fail(f"HF_HUB_OFFLINE is set, so nothing was pushed. {directory} has the files.")
    hub = HfApi()
    try:
        hub.create_repo(repository, repo_type="dataset", private=True, exist_ok=True)
        # One that was there before stays as public as it was.
        is_private = hub.repo_info(repository, repo_type="dataset").private
        if is_private:
            hub.upload_folder(repo_id=repository, folder_path=directory, repo_type="dataset", ignore_patterns=[".*"])
    except Exception as error:  # noqa: BLE001 - of the hub's client, whose HTTP library changes with its version
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        fail(f"nothing was pushed: {reason}. {directory} has the files; `hf auth login` signs in to the hub.")
    if not is_private:
        why = f"{repository} is public. Make it private, or name another"
        fail(f"nothing was pushed: {why}. {directory} has the files.")
    say(f"pushed to {repository}", err=True)
