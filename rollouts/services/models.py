"""Register models under names, make a tiny one, and take names away.

A model is what its files are, so files are read before a row is written: no transaction is open meanwhile.
"""

import re
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction

from environments.disk import detour
from rollouts.errors import Conflict, Invalid, StateConflict
from rollouts.models import Model, ModelOrigin, PolicyVersion, Project, Run
from rollouts.models.model import MODEL_NAME
from rollouts.reasons import Reason, ReasonCode
from rollouts.services import model_checks
from rollouts.services.transitions import record_note
from rollouts.states import RUN_ACTIVE
from trainers.storage.model_files import ModelFacts, ModelFault, hash_files, read_facts

BUILT_IN = {"tiny-qwen3": (), "tiny-tools": ("--tools",)}
"""Name -> what `trainers.model.tiny` is told, of the models that are made when the first run that starts from them
begins."""
MAX_NAME = 64
_MAKE_DEADLINE_S = 300.0


def add(*, project: Project, name: str, source: str, user: User | None) -> Model:
    """Register an absolute directory, or a model of the hub, that would load. Raises Invalid, Conflict."""
    check_name(name)
    try:
        directory = model_checks.check(source)
    except ModelFault as fault:
        raise Invalid("Nothing was registered: the model would not load.", fields={"source": str(fault)}) from None
    return _register(project, name, source, directory, origin=ModelOrigin.ADDED, created_by=user)


def make_tiny(*, project: Project, name: str, seed: int, tools: bool = False, user: User | None = None) -> Model:
    """Make a tiny Qwen3 with random weights in a directory of its own, and register it. Takes seconds.

    Safe to repeat after a crash and beside another: whoever renames first has made it. Raises Invalid, Conflict.
    """
    check_name(name)
    directory = built_in_directory(name)
    if Model.objects.filter(project=project, name=name).exists():
        raise Conflict(f"Project {project.slug} has a model {name} already.")
    if not directory.exists():
        partial = directory.with_name(f"{name}.partial-{uuid.uuid4().hex[:8]}")
        partial.mkdir(parents=True)
        try:
            told = BUILT_IN.get(name, ("--tools",) if tools else ())
            _run_program("trainers.model.tiny", str(partial), "--seed", str(seed), *told)
            partial.rename(directory)
        except OSError:
            if not directory.exists():
                raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    elif name not in BUILT_IN:
        raise Conflict(f"{directory} is there already: register it with `rollyard models add`, or choose another name.")
    return _register(project, name, str(directory), directory, origin=ModelOrigin.MADE, created_by=user)


def make_built_in(run: Run) -> None:
    """Make the models that the run starts from, or serves, of those that are made when first needed. Idempotent."""
    config = run.parsed
    sources = {config.model.path, *(policy.model for policy in config.frozen.values())}
    for name in BUILT_IN:
        directory = str(built_in_directory(name))
        if directory in sources:
            model = Model.objects.filter(project=run.project, name=name).first()
            try:
                model = model or make_tiny(project=run.project, name=name, seed=0)
            except Conflict:  # another run of the project made it in this moment
                model = Model.objects.get(project=run.project, name=name)
            if directory == config.model.path:
                Run.objects.filter(pk=run.pk, model=None).update(model=model)


def built_in_directory(name: str) -> Path:
    """Where a model that is made here lies."""
    return Path(settings.ROLLYARD_MODELS_DIR) / name


def register_result(run: Run) -> Model | None:
    """Register the newest policy version of a run under the name its config asks for; None if it asks for none.

    A name that was taken meanwhile is not taken over: the result gets it with the run's key behind. Idempotent, so it
    may be called again after a crash. Raises Invalid when the files are no model that loads.
    """
    name = run.parsed.register_as
    if not name:
        return None
    if (known := Model.objects.filter(run=run).first()) is not None:
        return known
    version = PolicyVersion.objects.filter(run=run, version__gt=0).exclude(path="").order_by("-version").first()
    if version is None:
        raise Invalid("Nothing was registered: the run has left no weights.")
    directory = Path(version.path)
    if fault := detour(directory, [run.directory]):
        raise Invalid("Nothing was registered.", fields={"source": fault})
    trained: dict[str, Any] = {"origin": ModelOrigin.TRAINED, "run": run, "step": version.version}
    trained["created_by"] = run.created_by
    try:
        if not Model.objects.filter(project=run.project, name=name).exists():
            return _register(run.project, name, str(directory), directory, **trained)
    except Conflict:
        pass
    return _register(run.project, f"{name}-{run.key}", str(directory), directory, **trained)


def remove(model: Model) -> None:
    """Take a name away. Files stay where they are. Raises StateConflict while a run that started from it goes on."""
    with transaction.atomic():
        model = Model.objects.select_for_update().get(pk=model.pk)
        active = Run.objects.filter(model=model, state__in=RUN_ACTIVE).values_list("key", flat=True).first()
        if active:
            raise StateConflict(f"Run {active} started from {model.name} and goes on. Stop it first.")
        model.delete()


def check_name(name: str) -> None:
    """Raise Invalid unless a model may be registered under this name."""
    if len(name) > MAX_NAME or not re.fullmatch(MODEL_NAME, name):
        form = f"must have 1 to {MAX_NAME} lower-case letters, digits, dashes, dots or underscores"
        raise Invalid("Nothing was registered.", fields={"name": form})


def _register(project: Project, name: str, source: str, directory: Path | None, **columns: Any) -> Model:
    closed = model_checks.closed() if source.startswith("/") else []  # of the hub's cache most is links
    try:
        facts = read_facts(directory, closed) if directory is not None else None
        sha256 = hash_files(directory, closed) if directory is not None else ""
    except ModelFault as fault:
        raise Invalid("Nothing was registered: the model would not load.", fields={"source": str(fault)}) from None
    try:
        with transaction.atomic():
            model = Model.objects.create(
                project=project, name=name, source=source, sha256=sha256, **_columns(facts), **columns
            )
            if model.run is not None:
                reason = Reason(ReasonCode.RESULT_REGISTERED, model=name)
                record_note(model.run, run_id=model.run.pk, actor="reconciler", reason=reason)
    except IntegrityError:
        raise Conflict(f"Project {project.slug} has a model {name} already.") from None
    return model


def _columns(facts: ModelFacts | None) -> dict[str, Any]:
    if facts is None:
        return {}
    return {
        "size_bytes": facts.size_bytes,
        "architecture": facts.architecture[:100],
        "parameters": facts.parameters,
        "tokenizer": facts.tokenizer[:100],
        "vocabulary": facts.vocabulary,
        "has_chat_template": facts.has_chat_template,
    }


def _run_program(module: str, *words: str) -> None:
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, *words],
            capture_output=True,
            text=True,
            timeout=_MAKE_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Invalid(f"Nothing was made: {module} took more than {_MAKE_DEADLINE_S:.0f} s.") from None
    if done.returncode:
        words_ = " ".join(done.stderr.strip().splitlines()[-1:])
        raise Invalid(f"Nothing was made: {words_[-300:]}. `rollyard doctor` says what is missing.")
