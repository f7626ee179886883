"""Commands about stored data: import and export groups, replay batches, verify them."""

import gzip
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from enum import StrEnum
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from controlplane.cli.completion import RunKey
from controlplane.cli.progress import Meter, progress
from controlplane.cli.terminal import (
    Json,
    Project,
    actor,
    complaint,
    connect,
    fail,
    print_json,
    project_of,
    run_of,
    say,
)
from environments import disk
from workers.launchers import accounts
from workers.launchers.sandbox import SandboxUnavailable

MAX_NAMED = 100
"""Bad lines and batches that a JSON answer names."""


class BadLines(StrEnum):
    """What an import does about a line that holds no group."""

    REFUSE = "refuse"
    SKIP = "skip"


def register(app: typer.Typer) -> None:
    """Add the commands to a program."""
    app.command("import-atropos")(import_atropos)
    app.command("export-groups")(export_groups)
    app.command("replay")(replay)
    app.command("verify-batches")(verify_batches)


def import_atropos(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="JSONL, or gzipped JSONL.")
    ],
    run: Annotated[str, typer.Option(metavar="KEY", help="Run to import into; without one, a new external run.")] = "",
    project: Project = "default",
    environment: Annotated[str, typer.Option(metavar="NAME", help="Which the groups are said to be of.")] = "imported",
    bad_lines: Annotated[BadLines, typer.Option(help="Stop at the first bad line, or go on behind it.")] = (
        BadLines.REFUSE
    ),
    as_json: Json = False,
) -> None:
    """Store Atropos' group JSONL (`process`, `data_path_to_save_groups`): a ScoredDataGroup per line.

    A group's key is the hash of its line and of how often the line came before in this import: after an interruption
    run the same command again, with --run. Nothing is stored twice.
    """
    connect()
    from django.db import DatabaseError, InterfaceError

    from rollouts.errors import ControlPlaneError
    from rollouts.services.curation import exchange

    row = run_of(run) if run else _launch_external(project)
    _start(row)
    totals = exchange.Imported()
    bad: list[dict[str, str]] = []

    def on_bad(line: exchange.BadLine) -> None:
        bad.extend([{"at": line.at, "reason": line.reason}] * (len(bad) < MAX_NAMED))
        if bad_lines is BadLines.REFUSE:
            raise line
        meter.say(f"skipped {line}")

    problem, again = "", f"run the same command again with --run {row.key}"
    with progress(sum(path.stat().st_size for path in files)) as meter:
        try:
            chunks = exchange.import_groups(
                row, _lines(files, meter, totals), totals, environment=environment, actor=actor(), on_bad=on_bad
            )
            for _ in chunks:
                pass
        except exchange.BadLine as line:
            problem = f"{line}\nWhat came before is stored. Mend the line or use --bad-lines skip, and {again}"
        except ControlPlaneError as error:
            problem = complaint(error)
        except (DatabaseError, InterfaceError) as error:
            problem = f"the database is away ({str(error).splitlines()[0]}): when it is back, {again}"
    if as_json:
        print_json({"run": row.key, **asdict(totals), "bad_lines": bad, "is_complete": not problem})
    else:
        say(
            f"{row.key}: {totals.stored} groups stored ({totals.rollouts} rollouts, {totals.tokens} tokens), "
            f"{totals.known} were there already, {totals.bad} bad lines"
        )
    if problem:
        fail(problem)


def export_groups(
    run: RunKey,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", dir_okay=False, help="File; gzipped if it ends in .gz.")
    ] = None,
    state: Annotated[
        list[str] | None, typer.Option(help="State of the groups; repeat for more. [default: all with a reward]")
    ] = None,
    environment: Annotated[str | None, typer.Option(metavar="NAME", help="Only groups of this one.")] = None,
    as_json: Json = False,
) -> None:
    """Write a run's groups as group JSONL, on stdout without a file. A file appears when it is complete."""
    if as_json and output is None:
        raise typer.BadParameter("would mix with the groups: give a file too (-o)", param_hint="--json")
    connect()
    from rollouts.services.curation import exchange

    row = run_of(run)
    states = known_states(state) or list(exchange.EXPORTED)
    groups = 0
    total = exchange.exportable(row, states=states, environment=environment).count()
    with progress(total) as meter, writing(output) as file:
        for line in exchange.export_groups(row, states=states, environment=environment):
            file.write(line)
            groups += 1
            meter.update(groups, f"{groups} groups")
    if as_json:
        print_json({"run": row.key, "groups": groups, "file": str(output)})
    else:
        say(f"{groups} groups of run {row.key}", err=True)


def replay(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Run whose batches are trained again.")],
    steps: Annotated[str, typer.Argument(metavar="STEPS", help="One, such as 5, or from 5 to 9: 5:9.")],
    into: Annotated[str, typer.Option(metavar="RUN", help="Run that trains them.")],
    reason: Annotated[str, typer.Option(help="Kept with it.")] = "",
    as_json: Json = False,
) -> None:
    """Have a run train stored batches of another next, before any of its own."""
    first, _, last = steps.partition(":")
    if not (first.isdecimal() and (last or first).isdecimal()) or steps.endswith(":"):
        raise typer.BadParameter("give a step, such as 5, or the first and the last, such as 5:9", param_hint="STEPS")
    connect()
    from rollouts.errors import ControlPlaneError
    from rollouts.services.batches import replays

    target, origin = run_of(into), run_of(source)
    try:
        ordered = replays.order(
            target, source=origin, first_step=int(first), last_step=int(last or first), actor=actor(), reason=reason
        )
    except ControlPlaneError as error:
        fail(complaint(error))
    if as_json:
        span = {"first_step": ordered.first_step, "last_step": ordered.last_step}
        print_json({"replay": ordered.pk, "run": target.key, "source": origin.key, **span})
    else:
        say(f"{target.key} trains steps {ordered.first_step} to {ordered.last_step} of {origin.key} next")


def verify_batches(run: RunKey, as_json: Json = False) -> None:
    """Encode every batch that was ever formed again and compare it with its hash. Exit status 1 if one differs."""
    connect()
    from rollouts.services.batches.verification import verify_batches

    row = run_of(run)
    count, faults = 0, []
    with progress(row.batches.count()) as meter:
        for verdict in verify_batches(row):
            count += 1
            meter.update(count, f"{count} batches")
            if verdict.fault:
                faults.append(verdict)
                meter.say(f"step {verdict.step}: {verdict.fault}")
    if as_json:
        differing = [asdict(verdict) for verdict in faults[:MAX_NAMED]]
        print_json({"run": row.key, "batches": count, "differing": len(faults), "batches_differing": differing})
    else:
        named = f": {', '.join(str(verdict.batch_id) for verdict in faults)}" if faults else ""
        say(f"{count} batches verified, {len(faults)} differ{named}")
    raise typer.Exit(1 if faults else 0)


def _launch_external(project: str) -> Any:
    from django.conf import settings

    from rollouts.services.runs import life, projects
    from trainers.config import resolve

    resolved = resolve("external-trainer", environ=os.environ)
    row = life.create(project=project_of(project), user=projects.ensure_admin(), resolved=resolved, actor=actor())
    say(f"run {row.key}  {settings.ROLLYARD_URL}/runs/{row.key}", err=True)
    return row


def _start(row: Any) -> None:
    """Let a run that was just launched take groups.

    For an external run, of which no process is ours, that is all the reconciler would do; so an import needs none.
    """
    from rollouts.errors import StateConflict
    from rollouts.models import RunKind
    from rollouts.services.runs import life
    from rollouts.states import RunState

    if row.state != RunState.PENDING:
        return
    if row.kind != RunKind.EXTERNAL:
        fail(f"run {row.key} has not been started: start `rollyard up`, wait until it is running, and import again")
    try:
        life.start(row, actor=actor())
    except StateConflict:  # the reconciler did it in this moment
        pass


def _lines(files: list[Path], meter: Meter, totals: Any) -> Iterator[Any]:
    from rollouts.services.curation import exchange

    before = 0
    for path in files:
        with path.open("rb") as file:
            for line in exchange.lines_of(file, str(path)):
                meter.update(before + _position(file), f"{totals.stored} stored, {totals.known} known, {path.name}")
                yield line
        before += path.stat().st_size


def _position(file: BufferedReader) -> int:
    return file.tell() if file.seekable() else 0


def known_states(given: list[str] | None) -> list[str]:
    """States of settled groups that a person named, or the end."""
    from rollouts.states import GroupState

    settled = [state for state in GroupState if state is not GroupState.PLAYING]
    if unknown := set(given or []) - set(settled):
        known = f"Known: {', '.join(settled)}."
        raise typer.BadParameter(f"unknown: {', '.join(sorted(unknown))}. {known}", param_hint="--state")
    return given or []


@contextmanager
def writing(output: Path | None) -> Iterator[BinaryIO]:
    """A file that takes its name when it is complete and on the disk, or the end; stdout without one."""
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        with disk.writing(output) as file:
            if output.suffix == ".gz":
                with gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0, compresslevel=6) as packed:
                    yield packed  # type: ignore[misc]
            else:
                yield file
    except OSError as error:
        fail(f"{output}: {error.strerror or error}.")
    open_to_runs([output])


def first_missing(path: Path) -> Path:
    """This absolute path, or the first of the directories above it that are not there yet: what is made with it."""
    return next((each for each in reversed(path.parents) if not each.exists()), path)


def open_to_runs(paths: list[Path]) -> None:
    """Let runs read files or directories that are closed to others by our umask, but made to be trained on.

    Where we are root, runs have an account of their own.
    """
    with suppress(SandboxUnavailable):  # then there is no account to open it to
        accounts.open_to(accounts.account_of_runs(), [path.parent.resolve() / path.name for path in paths])
