"""Policy versions: announced by the trainer, published to the replicas, superseded by the next."""

from datetime import timedelta

from django.db import transaction
from django.db.models.functions import Now

from rollouts.errors import Invalid, StateConflict
from rollouts.models import Evaluation, Event, PolicyVersion, Purpose, Run, RunKind, ScoredGroup
from rollouts.reasons import Reason, ReasonCode
from rollouts.services.groups import next_groups
from rollouts.services.runs.checkpoints import check_files
from rollouts.services.runs.trainer_writes import lock_for_trainer
from rollouts.services.transitions import DB_NOW, move, record_creation, record_note, transition
from rollouts.states import EvaluationState, GroupState, PolicyVersionState, RunState
from trainers.wire import PolicyVersionIn


def register_initial(run: Run, *, path: str, size_bytes: int = 0, actor: str = "reconciler") -> PolicyVersion:
    """Version 0 is the model that the run starts from. Idempotent."""
    given = {"path": path, "size_bytes": size_bytes}
    with transaction.atomic():
        row, created = PolicyVersion.objects.get_or_create(run=run, version=0, defaults=given)
        if created:
            record_creation([row], run_id=run.pk, state=PolicyVersionState.WRITTEN, actor=actor)
    return row


def announce(run: Run, *, epoch: int, version_in: PolicyVersionIn) -> PolicyVersion:
    """Weights of a version are complete on disk. A version that is known stays as it is: a resumed trainer repeats.

    Locks the run's row to check the fencing epoch. Raises Invalid for a path outside the run's directory.
    """
    with transaction.atomic():
        run = lock_for_trainer(run, epoch)
        check_files(run, "weights", version_in)
        if not 1 <= version_in.version <= run.max_steps:
            raise Invalid("No such version.", fields={"version": f"must be 1 to {run.max_steps}"})
        row, created = PolicyVersion.objects.get_or_create(
            run=run,
            version=version_in.version,
            defaults={
                "path": version_in.path,
                "manifest_sha256": version_in.manifest_sha256,
                "size_bytes": version_in.size_bytes,
                "epoch": epoch,
            },
        )
        if created:
            record_creation(
                [row],
                run_id=run.pk,
                state=PolicyVersionState.WRITTEN,
                actor=f"trainer:{epoch}",
            )
    return row


def find_publishable(run: Run) -> PolicyVersion | None:
    """The version that should go live now, if any: the newest one written, unless something still needs the live one.

    The versions of a supervised run and of an eval run are there to be evaluated, and each is: the oldest goes first,
    and the next waits until it is measured. What an RL run starts from is measured as exactly; a later evaluation goes
    on over the versions that come meanwhile, and says over which. With ``strict_async_level`` the groups that are to be
    generated on the live version hold publishing back, and no version is passed over, so that every batch lags by the
    same number of steps.
    """
    written = PolicyVersion.objects.filter(run=run, state=PolicyVersionState.WRITTEN, version__gt=run.live_version)
    is_exact = run.kind in {RunKind.SFT, RunKind.EVAL}
    is_strict = run.kind == RunKind.RL and run.parsed.algorithm.strict_async_level and run.state == RunState.RUNNING
    chosen = written.order_by("version" if is_exact or is_strict else "-version").first()
    if chosen is None:
        return None
    playing = Evaluation.objects.filter(run=run, state=EvaluationState.PLAYING)
    if (playing if is_exact else playing.filter(version=0)).exists():
        return None
    if run.live_version >= 0 and is_strict:
        training = ScoredGroup.objects.filter(run=run, state=GroupState.PLAYING, purpose=Purpose.TRAIN)
        if training.exists() or next_groups.capacity(run).capacity > 0:
            return None
    return chosen


def waits_for_groups(run: Run) -> bool:
    """Whether a version that is written may wait for groups to be scored, or the end of the run does."""
    written = PolicyVersion.objects.filter(run=run, state=PolicyVersionState.WRITTEN, version__gt=run.live_version)
    return run.state == RunState.FINISHING or written.exists()


def published(version: PolicyVersion, *, actor: str = "reconciler") -> PolicyVersion:
    """Every ready replica serves it now: it becomes live, older ones are superseded, due evaluations are opened.

    Raises StateConflict when it was published already, or its run is over. Locks the run's row.
    """
    with transaction.atomic():
        run = Run.objects.select_for_update(no_key=True).get(pk=version.run_id)
        if run.is_over:
            raise StateConflict(f"Run {run.key} is {run.state}; nothing is published any more.")
        older = PolicyVersion.objects.filter(run=run, version__lt=version.version)
        transition(
            PolicyVersion,
            older.values_list("pk", flat=True),
            to=PolicyVersionState.SUPERSEDED,
            actor=actor,
            reason=Reason(ReasonCode.VERSION_SUPERSEDED, version=version.version),
        )
        version = move(version, to=PolicyVersionState.LIVE, actor=actor, published_at=DB_NOW)
        before, run.live_version = run.live_version, version.version
        run.save(update_fields=["live_version"])
        if run.kind == RunKind.EVAL:
            transition(Run, [run.pk], to=RunState.RUNNING, expect=[RunState.STARTING], actor=actor)
        _open_evaluations(run, before)
    return version


def not_loaded(version: PolicyVersion, *, reason: Reason, actor: str = "reconciler") -> None:
    """No replica could load it, or got it. It may be tried again: no state changes."""
    record_note(version, run_id=version.run_id, actor=actor, reason=reason)


def failed_loads(version: PolicyVersion) -> list[Event]:
    """When no replica could load it, or got it, and why: the last first."""
    of_version = Event.objects.filter(object_kind="policyversion", object_id=version.pk)
    codes = (ReasonCode.VERSION_NOT_LOADED, ReasonCode.VERSION_NOT_BROUGHT)
    return list(of_version.filter(reason_code__in=codes).order_by("-id"))


def list_prunable(run: Run) -> list[PolicyVersion]:
    """Superseded versions of which the files may be removed: all but the newest ``keep_weights``, never version 0 and
    what the run started from, which gives its tokenizer."""
    keep = run.parsed.trainer.keep_weights
    superseded = PolicyVersion.objects.filter(run=run, version__gt=0, state=PolicyVersionState.SUPERSEDED)
    return list(superseded.exclude(path__in=["", run.parsed.model.path]).order_by("-version")[keep:])


def forget_files(versions: list[PolicyVersion]) -> None:
    """The files of these versions are gone; their rows stay for lineage."""
    PolicyVersion.objects.filter(pk__in=[row.pk for row in versions]).update(path="")


def _open_evaluations(run: Run, before: int) -> None:
    """Open what is due by the version that became live after ``before``: those between were never live."""
    plan = run.parsed.evaluation
    version = run.live_version
    if plan is None or not plan.problems:
        return
    due = range(before + 1, version + 1)
    if run.kind != RunKind.EVAL and not any(plan.is_due(each, run.max_steps) for each in due):
        return
    rows = [
        Evaluation(
            run=run,
            environment=environment,
            version=version,
            problems=_least(plan.problems, environment.problem_count),
            deadline_at=Now() + timedelta(seconds=plan.deadline_s),
        )
        for environment in run.environments.filter(name__in=run.parsed.measured).order_by("id")
    ]
    Evaluation.objects.bulk_create(rows)
    record_creation(rows, run_id=run.pk, state=EvaluationState.PLAYING, actor="reconciler")


def _least(wanted: int, there: int | None) -> int:
    """A problem that came round again would be no other problem."""
    return wanted if there is None else min(wanted, there)
