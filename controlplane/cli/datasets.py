"""Commands about datasets: list and show them, make a version by a recipe or of a file, and compare two versions."""

from pathlib import Path
from typing import Annotated, Any

import typer

from controlplane.cli.data import BadLines
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
    say,
)

_app = typer.Typer(no_args_is_help=True, help="What is learned from: named versions that never change.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the dataset; its next version is made.")]
Note = Annotated[str, typer.Option(help="What the version is for.")]
Licence = Annotated[str, typer.Option(help="Of what is in the dataset.")]
Form = Annotated[bool, typer.Option("--pairs", help="Pairs, of which the first is better (DPO).")]
Share = Annotated[
    float | None, typer.Option(help="Share of the problems in the validation split. [default: the parent's, or 0]")
]
_MEANT = {
    "added": "only in the second",
    "removed": "only in the first",
    "relabelled": "wanted or corrected otherwise",
    "moved": "in the other split",
    "same": "in both alike",
}


def register(app: typer.Typer) -> None:
    """Add the commands to a program."""
    app.add_typer(_app, name="datasets")


@_app.command("list")
def list_datasets(project: Project = "", as_json: Json = False) -> None:
    """All datasets, newest first, with the number of their newest version."""
    connect()
    from django.db.models import Max

    from rollouts.models import Dataset

    rows = Dataset.objects.select_related("project").annotate(newest=Max("versions__version")).order_by("-id")
    if project:
        rows = rows.filter(project=project_of(project))
    told = [{"name": row.name, "project": row.project.slug, "newest": row.newest, "by": row.actor} for row in rows]
    none = "There is no dataset yet: `rollyard datasets make NAME --run KEY` makes one."
    list_rows(told, lambda row: f"{row['name']}@{row['newest']:<6} {row['project']:<16} {row['by']}", none, as_json)


@_app.command("show")
def show(
    named: Annotated[str, typer.Argument(metavar="NAME[@VERSION]", help="Without a version the newest.")],
    project: Project = "default",
    as_json: Json = False,
) -> None:
    """One version: what it was chosen by, what it has, duplicates, and overlap with evaluations."""
    connect()
    from django.conf import settings

    version = version_of(project, named)
    told = _account(version)
    if as_json:
        print_json(told)
        return
    say(f"{version}  {settings.ROLLYARD_URL}/datasets/{version.dataset.key}/{version.version}/")
    for key, value in told.items():
        if key == "statistics" and value is not None:
            for name, figure in _figures(value).items():
                say(f"{name:<16} {figure}")
        elif value not in (None, "", {}):
            say(f"{key:<16} {value}")
    if version.statistics is None:
        say("It is not counted yet: a worker of `rollyard up` does that.", err=True)


@_app.command("make")
def make(
    name: Name,
    run: Annotated[list[str] | None, typer.Option(metavar="KEY", help="A run; repeat for more.")] = None,
    group: Annotated[list[str] | None, typer.Option(metavar="KEY", help="Only this one of the run.")] = None,
    queue: Annotated[str, typer.Option(metavar="KEY", help="A queue: what it holds.")] = "",
    version: Annotated[str, typer.Option(metavar="NAME@VERSION", help="What this one has, and less.")] = "",
    pairs: Form = False,
    environment: Annotated[str, typer.Option(metavar="NAME", help="Only groups of this one.")] = "",
    state: Annotated[list[str] | None, typer.Option(help="Of the groups; repeat for more.")] = None,
    best: Annotated[int, typer.Option(min=0, help="Most rollouts of each group and seat, the best; 0: all.")] = 0,
    min_reward: Annotated[float | None, typer.Option(help="Only rollouts with at least this reward.")] = None,
    max_reward: Annotated[float | None, typer.Option(help="Only rollouts with at most this reward.")] = None,
    min_gap: Annotated[float, typer.Option(min=0, help="Of a pair: rewards differ by more than this.")] = 0.0,
    truncated: Annotated[bool, typer.Option("--truncated", help="Also rollouts that a token budget ended.")] = False,
    accepted: Annotated[bool, typer.Option("--accepted", help="Only what somebody accepts.")] = False,
    rejected: Annotated[bool, typer.Option("--rejected", help="Also what somebody rejects, to be avoided.")] = False,
    unwanted_below: Annotated[float | None, typer.Option(help="Also what has less reward, to be avoided.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Only what has this tag; repeat for any of more.")] = None,
    has_correction: Annotated[bool, typer.Option("--corrected", help="Only rollouts that somebody corrected.")] = False,
    validation_share: Share = None,
    limit: Annotated[int, typer.Option(min=0, help="Most members, the first; 0: all.")] = 0,
    note: Note = "",
    licence: Licence = "",
    project: Project = "default",
    as_json: Json = False,
) -> None:
    """Make the next version of a dataset: of runs, of a queue, or of another version."""
    connect()
    import msgspec

    from rollouts.errors import ControlPlaneError
    from rollouts.services.datasets import making
    from rollouts.services.datasets.choosing import Recipe

    values = {
        "runs": run or [],
        "groups": group or [],
        "queue": queue,
        "version": version,
        "environment": environment,
        "states": state or [],
        "best": best or None,
        "min_reward": min_reward,
        "max_reward": max_reward,
        "min_gap": min_gap,
        "truncated": truncated,
        "accepted": accepted,
        "rejected": rejected,
        "unwanted_below": unwanted_below,
        "tags": tag or [],
        "has_correction": has_correction,
        "validation_share": validation_share,
        "limit": limit or None,
    }
    try:
        made = making.make(
            project_of(project),
            name=name,
            form=_form(pairs),
            recipe=msgspec.convert(values, Recipe),
            actor=actor(),
            note=note,
            licence=licence,
        )
    except (ControlPlaneError, msgspec.ValidationError) as error:
        fail(complaint(error) if isinstance(error, ControlPlaneError) else str(error))
    _tell(made, as_json)


@_app.command("import")
def import_file(
    name: Name,
    file: Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="JSONL, or gzipped JSONL.")],
    pairs: Form = False,
    validation_share: Annotated[float, typer.Option(help="Share of the problems in the validation split.")] = 0.0,
    bad_lines: Annotated[BadLines, typer.Option(help="Make nothing if a line is bad, or go on without it.")] = (
        BadLines.REFUSE
    ),
    note: Note = "",
    licence: Licence = "",
    project: Project = "default",
    as_json: Json = False,
) -> None:
    """Make the next version of a dataset of a file, whose lines have the forms that `data.path` takes."""
    connect()
    from rollouts.errors import ControlPlaneError
    from rollouts.services.curation.exchange import lines_of
    from rollouts.services.datasets import importing

    def skip(bad: Any) -> None:
        say(f"left out: {bad}", err=True)

    try:
        with file.open("rb") as opened:
            made = importing.import_rows(
                project_of(project),
                name=name,
                form=_form(pairs),
                lines=lines_of(opened, file.name),
                source=file.name,
                actor=actor(),
                validation_share=validation_share,
                note=note,
                licence=licence,
                on_bad=skip if bad_lines is BadLines.SKIP else None,
            )
    except ControlPlaneError as error:
        fail(complaint(error))
    _tell(made, as_json)


@_app.command("diff")
def diff(
    before: Annotated[str, typer.Argument(metavar="NAME@VERSION")],
    after: Annotated[str, typer.Argument(metavar="NAME@VERSION")],
    project: Project = "default",
    as_json: Json = False,
) -> None:
    """How two versions differ: members added, removed, and labelled otherwise."""
    connect()
    from rollouts.selectors import datasets

    found = datasets.difference(version_of(project, before), version_of(project, after))
    if as_json:
        print_json(found.counts)
        return
    for kind, count in found.counts.items():
        say(f"{kind:<12} {count:>9}  {_MEANT[kind]}")


def version_of(project: str, named: str) -> Any:
    """The version that `NAME@3`, or the newest that `NAME`, names in a project, or the end."""
    from rollouts.errors import Invalid
    from rollouts.models import Dataset
    from rollouts.services.datasets.choosing import find_version

    row = project_of(project)
    if "@" not in named:
        dataset = Dataset.objects.filter(project=row, name=named).first()
        newest = dataset.versions.order_by("-version").first() if dataset else None
        return newest or fail(f"there is no dataset {named} in project {project}")
    try:
        return find_version(row, named)
    except Invalid as error:
        fail(error.message)


def _form(pairs: bool) -> str:
    return "pairs" if pairs else "examples"


def _tell(version: Any, as_json: bool) -> None:
    """Count what was made, as a worker would, and say what it is."""
    from rollouts.services.datasets import counting

    counting.count(version.pk)
    version.refresh_from_db(fields=["statistics"])
    if as_json:
        print_json(_account(version))
        return
    say(f"{version}: {version.member_count} {version.form}")
    if version.statistics is not None:
        for name, figure in _figures(version.statistics).items():
            say(f"{name:<16} {figure}")


def _account(version: Any) -> dict[str, Any]:
    return {
        "version": str(version),
        "form": version.form,
        "members": version.member_count,
        "digest": version.digest,
        "recipe": version.recipe,
        "licence": version.dataset.licence,
        "note": version.note,
        "by": version.actor,
        "at": version.at.isoformat(),
        "statistics": version.statistics,
    }


def _figures(statistics: dict[str, Any]) -> dict[str, Any]:
    """What a terminal shows of the statistics."""
    figures, duplicates, overlap = (statistics[name] for name in ("figures", "duplicates", "overlap"))
    shown = {name: figures[name] for name in ("train", "validation", "unwanted", "corrected", "problems", "tokens")}
    return shown | {
        "reward mean": figures["reward_mean"],
        "duplicates": f"{duplicates['exact']} exact, {duplicates['near']} near among {duplicates['compared']}",
        "overlap": f"{overlap['members']} are of the {overlap['problems']} problems that evaluations played",
    }
