"""Commands about checkpoints: list, verify and export them; and the option that forks a run from one."""

import os
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from controlplane.cli.completion import RunKey, complete_run
from controlplane.cli.data import first_missing, open_to_runs
from controlplane.cli.terminal import Json, complaint, connect, fail, find_run, list_rows, print_json, run_of, say

_app = typer.Typer(no_args_is_help=True, help="Look at what training can resume from; get models out of it.")

Named = Annotated[
    str, typer.Argument(metavar="RUN[@STEP]", help="Key of a run; @STEP: one checkpoint.", autocompletion=complete_run)
]


def register(app: typer.Typer) -> None:
    """Add the commands to a program."""
    app.add_typer(_app, name="checkpoints")


def plan_fork(name: str, *, with_optimizer: bool) -> Any:
    """The fork that `--fork-from RUN[@STEP]` asks for, or None without it. Raises ConfigError when there is none."""
    from trainers.config import ConfigError, ConfigProblem

    if not name:
        if with_optimizer:
            raise ConfigError([ConfigProblem("--fork-optimizer", "is about --fork-from: say which run.")])
        return None
    from rollouts.errors import ControlPlaneError
    from rollouts.services.runs import forks

    try:
        key, step = forks.parse(name)
        source, meant = find_run(key)
        if source is None:
            raise ConfigError([ConfigProblem("--fork-from", f"no run {key!r}.", meant)])
        return forks.plan(source, step=step, with_optimizer=with_optimizer)
    except ControlPlaneError as error:
        raise ConfigError([ConfigProblem("--fork-from", complaint(error))]) from None


@_app.command("list")
def list_checkpoints(run: RunKey, as_json: Json = False) -> None:
    """List a run's checkpoints, newest first, and who was forked from them."""
    connect()
    rows = [_row(checkpoint) for checkpoint in run_of(run).checkpoints.prefetch_related("forks")]
    none = f"Run {run} has no checkpoint yet: `trainer.checkpoint_every` says when it makes one."
    list_rows(rows, _line, none, as_json)


@_app.command("verify")
def verify_checkpoints(name: Named, as_json: Json = False) -> None:
    """Hash every byte of a run's complete checkpoints again, or of one. Exit status 1 if one is not as announced."""
    connect()
    from controlplane.cli.progress import progress
    from trainers.errors import CheckpointCorrupt
    from trainers.storage.durable import verify_directory

    rows, faults = _complete(name), {}
    with progress(sum(row.size_bytes for row in rows)) as meter:
        done = 0
        for row in rows:
            try:
                verify_directory(Path(row.path), row.manifest_sha256)
            except CheckpointCorrupt as error:
                faults[row.step] = str(error)
                meter.say(f"step {row.step}: {error}")
            done += row.size_bytes
            meter.update(done, f"step {row.step}")
    if as_json:
        print_json({"run": rows[0].run.key, "checkpoints": len(rows), "faults": faults})
    else:
        say(f"checkpoints verified: {len(rows)}, damaged: {len(faults)}")
    raise typer.Exit(1 if faults else 0)


@_app.command("export")
def export_checkpoint(
    name: Named,
    output: Annotated[Path, typer.Option("--output", "-o", help="Directory to make; it must not exist.")],
    as_json: Json = False,
) -> None:
    """Write a checkpoint, the newest unless a step is named, as a Hugging Face model in safetensors.

    A LoRA adapter is merged into the weights.
    """
    output = Path(os.path.abspath(output.expanduser()))  # a sandbox takes no relative one
    if output.exists():
        raise typer.BadParameter(f"{output} exists already", param_hint="--output")
    connect()
    from workers.fleet import forking

    row = _complete(name)[0]
    made = first_missing(output)
    partial = output.with_name(f"{output.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        forking.export(row, partial, dtype=row.run.parsed.model.dtype)
        partial.rename(output)
        open_to_runs([made])
    except forking.ExportFailed as error:
        fail(str(error))
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    if as_json:
        print_json({"run": row.run.key, "step": row.step, "directory": str(output)})
    else:
        say(f"{output}: step {row.step} of run {row.run.key}")


def _complete(name: str) -> list[Any]:
    """Complete checkpoints of a run, newest first, or that of RUN@STEP; ends the program when there is none."""
    from rollouts.errors import ControlPlaneError, Invalid
    from rollouts.services.runs import forks
    from rollouts.states import CheckpointState

    try:
        key, step = forks.parse(name)
    except Invalid as error:
        fail(next(iter(error.fields.values())))
    run = run_of(key)
    try:
        first = forks.find_checkpoint(run, step)
    except ControlPlaneError as error:
        fail(complaint(error))
    return [first] if step is not None else list(run.checkpoints.filter(state=CheckpointState.COMPLETE))


def _line(row: dict[str, Any]) -> str:
    forks = f"  forked by {', '.join(row['forks'])}" if row["forks"] else ""
    size = f"{row['size_bytes'] / 1e6:.1f} MB"
    return f"{row['step']:>8}  {row['state']:<9} {size:>12}  {row['path']}{forks}"


def _row(checkpoint: Any) -> dict[str, Any]:
    return {
        "step": checkpoint.step,
        "state": str(checkpoint.state),
        "size_bytes": checkpoint.size_bytes,
        "created_at": checkpoint.created_at.isoformat(),
        "path": checkpoint.path,
        "forks": [fork.key for fork in checkpoint.forks.all()],
    }
