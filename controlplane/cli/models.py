"""Commands about models: list, show, add, make and take away; and what a launch does when its model is missing."""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

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

_app = typer.Typer(no_args_is_help=True, help="What runs start from, by name.")

Name = Annotated[str, typer.Argument(metavar="NAME")]


def register(app: typer.Typer) -> None:
    """Add the commands to a program."""
    app.add_typer(_app, name="models")


def launch(project: Any, resolved: Any, *, fork: Any, make_model: bool, show: Callable[[str], None]) -> Any:
    """Launch a run as the command line does; make its model first where a preset can, and the person agrees.

    Follows the run that makes the model to its end. Relative directories start where the command was given. Raises
    ControlPlaneError.
    """
    from rollouts.errors import ModelMissing
    from rollouts.models import Run
    from rollouts.services.runs import launches, projects

    def attempt() -> Any:
        return launches.launch(
            project=project,
            user=projects.ensure_admin(),
            resolved=_absolute(resolved),
            actor=actor(),
            forkable=Run.objects.all(),
            fork=fork,
        )

    try:
        return attempt()
    except ModelMissing as missing:
        name = resolved.config.model.path
        if not make_model and not agrees(name):
            missing.fields = {key: f"{fault}: --make-model makes it first" for key, fault in missing.fields.items()}
            raise
    _make(project, name, show)
    return attempt()


def agrees(name: str) -> bool:
    """Whether the person at the terminal, if there is one, wants the model to be made."""
    question = f"There is no model {name} here yet. Make it first, by a supervised run?"
    return sys.stdin.isatty() and typer.confirm(question, default=True, err=True)


def _make(project: Any, name: str, show: Callable[[str], None]) -> None:
    """Launch the run that makes a model, unless one is under way, and follow it. Ends the program when it fails."""
    from controlplane.cli.follow import follow
    from rollouts.models import Run
    from rollouts.selectors import models
    from rollouts.services.runs import launches, projects
    from trainers.config import resolve

    maker = models.find_maker(project, name)
    if maker is None or maker.is_over:
        preset = models.preset_that_makes(name)
        maker = launches.launch(
            project=project,
            user=projects.ensure_admin(),
            resolved=resolve(preset, environ=os.environ),
            actor=actor(),
            forkable=Run.objects.none(),
        )
    show(f"{maker.key} makes the model {name}")
    if follow(maker.key, show):
        maker.refresh_from_db()
        fail(f"the model {name} was not made: run {maker.key} {maker.state}: {maker.state_reason}")


def _absolute(resolved: Any) -> Any:
    """With relative paths made absolute: the reconciler runs elsewhere. A bare word is a name, ./word is none."""
    config = resolved.config
    changed = {"model": _with_absolute_path(config.model)}
    changed["model"] = changed["model"].model_copy(update={"lora": _with_absolute_path(config.model.lora)})
    if config.data is not None:
        changed["data"] = _with_absolute_path(config.data)
        if config.data.validation is not None:
            validation = _with_absolute_path(config.data.validation)
            changed["data"] = changed["data"].model_copy(update={"validation": validation})
    changed["policies"] = [
        policy.model_copy(update={"model": absolute_place(policy.model)}) for policy in config.policies
    ]
    changed["environments"] = [each.model_copy(update={"args": absolute_args(each)}) for each in config.environments]
    return replace(resolved, config=config.model_copy(update=changed))


def _with_absolute_path(section: Any) -> Any:
    return section.model_copy(update={"path": absolute_place(section.path)})


def absolute_args(environment: Any) -> dict[str, Any]:
    """Arguments of an environment, with the path of the data that it reads made absolute."""
    from environments import registry

    data = registry.data_of(environment.name, environment.args)
    return {**environment.args, "data": absolute_place(data)} if data else environment.args


def absolute_place(named: str) -> str:
    """A path as an absolute one, a name as it is: whatever is told of it runs elsewhere."""
    from trainers.run_config.data import DATA_SUFFIXES

    is_there = "/" in named and "@" not in named and Path(named).exists()
    if named.startswith((".", "~")) or is_there or named.endswith(DATA_SUFFIXES):
        return os.path.abspath(Path(named).expanduser())  # without ..
    return named


@_app.command("list")
def list_models(project: Project = "default", as_json: Json = False) -> None:
    """List the models of a project, newest first."""
    connect()
    from rollouts.models import Model

    rows = [_row(model) for model in Model.objects.filter(project=project_of(project)).select_related("run")]
    none = f"Project {project} has no model yet: `rollyard models add NAME DIRECTORY` adds one, `make-tiny` makes one."
    list_rows(rows, _line, none, as_json)


@_app.command("show")
def show_model(name: Name, project: Project = "default", as_json: Json = False) -> None:
    """Show what is known of one model, and which runs started from it."""
    connect()
    from rollouts.selectors import models

    model = _model_of(project, name)
    row = _row(model) | {"runs": [run.key for run in models.list_runs(model)]}
    if as_json:
        print_json(row)
        return
    for key, value in row.items():
        say(f"{key:<18} {', '.join(value) if isinstance(value, list) else '' if value is None else value}")


@_app.command("add")
def add_model(
    name: Name,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A directory, or the name of a model on the hub.")],
    project: Project = "default",
    as_json: Json = False,
) -> None:
    """Register a model that is here, or on the hub, under a name. Its files stay where they are."""
    connect()
    from rollouts.services import models

    path = Path(source).expanduser()
    source = os.path.abspath(path) if path.is_dir() or source[:1] in {".", "~"} else source
    _answer(lambda: models.add(project=project_of(project), name=name, source=source, user=None), as_json)


@_app.command("make-tiny")
def make_tiny(
    name: Name,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same weights.")] = 0,
    tools: Annotated[
        bool, typer.Option("--tools", help="With the chat format of its family, which knows tools.")
    ] = False,
    project: Project = "default",
    as_json: Json = False,
) -> None:
    """Make a tiny Qwen3 with random weights and a byte-level tokenizer, for trying things out on a CPU."""
    connect()
    from rollouts.services import models

    _answer(lambda: models.make_tiny(project=project_of(project), name=name, seed=seed, tools=tools), as_json)


@_app.command("rm")
def remove_model(name: Name, project: Project = "default") -> None:
    """Take a name away. The files stay, and so do runs that started from it."""
    connect()
    from rollouts.errors import ControlPlaneError
    from rollouts.services import models

    model = _model_of(project, name)
    try:
        models.remove(model)
    except ControlPlaneError as error:
        fail(complaint(error))
    say(f"{name} is no name of a model any more; its files stay: {model.source}")


def _answer(write: Callable[[], Any], as_json: bool) -> None:
    from rollouts.errors import ControlPlaneError

    try:
        row = _row(write())
    except ControlPlaneError as error:
        fail(complaint(error))
    print_json(row) if as_json else say(f"{row['model']}: {row['source']}")


def _model_of(project: str, name: str) -> Any:
    from rollouts.models import Model

    if found := Model.objects.filter(project=project_of(project), name=name).select_related("run").first():
        return found
    fail(f"no model {name!r} in project {project!r}")


def _line(row: dict[str, Any]) -> str:
    size = f"{row['parameters'] / 1e6:,.1f} M" if row["parameters"] else ""
    return f"{row['model']:<28} {row['architecture']:<22} {size:>12}  {row['origin']:<24} {row['source']}"


def _row(model: Any) -> dict[str, Any]:
    return {
        "model": model.name,
        "source": model.source,
        "origin": f"{model.run.key}@{model.step}" if model.run else str(model.origin),
        "architecture": model.architecture,
        "parameters": model.parameters,
        "tokenizer": model.tokenizer,
        "vocabulary": model.vocabulary,
        "has_chat_template": model.has_chat_template,
        "size_bytes": model.size_bytes,
        "sha256": model.sha256,
        "created_at": model.created_at.isoformat(),
    }
