"""Runs that start from a checkpoint of another run, their policy version 0; and eval runs, which measure several."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from django.conf import settings

from rollouts.errors import Conflict, Invalid, NotFound
from rollouts.models import Checkpoint, PolicyVersion, Run
from rollouts.models.run import new_key
from rollouts.services.transitions import record_creation
from rollouts.states import CheckpointState, PolicyVersionState
from trainers.config import RunConfig
from trainers.origins import Origin, OriginKind


class Fork(NamedTuple):
    """A run that is about to be launched, and the checkpoint it starts from."""

    key: str
    """Of the new run: its start model lies in its own directory."""
    checkpoint: Checkpoint
    with_optimizer: bool
    series: tuple[Checkpoint, ...] = ()
    """Of an eval run: all that it measures, oldest first. Each is the policy version of its own step."""

    @property
    def overrides(self) -> dict[str, str]:
        """What the new run's config has to be resolved with, over everything else."""
        first = self.series[0].step if self.series else 0
        return {"model.path": str(Path(settings.ROLLYARD_RUNS_DIR) / self.key / "weights" / f"step_{first}")}

    @property
    def origin(self) -> Origin:
        """Where the overridden values come from, as the run's page shows it."""
        steps = ",".join(str(checkpoint.step) for checkpoint in self.series)
        return Origin(OriginKind.FORK, f"{self.checkpoint.run.key}@{steps}" if steps else name_of(self.checkpoint))


def name_of(checkpoint: Checkpoint) -> str:
    """How people write a checkpoint: RUN@STEP."""
    return f"{checkpoint.run.key}@{checkpoint.step}"


def parse(name: str) -> tuple[str, int | None]:
    """Split RUN or RUN@STEP. Raises Invalid."""
    key, separator, step = name.partition("@")
    if separator and not (step.isascii() and step.isdigit() and len(step) <= 9):
        raise Invalid("No such checkpoint.", fields={"fork_from": f"{name!r} is neither RUN nor RUN@STEP"})
    return key, int(step) if separator else None


def find_checkpoint(source: Run, step: int | None) -> Checkpoint:
    """The complete checkpoint of a step, or the newest. Raises NotFound with the steps there are."""
    complete = Checkpoint.objects.filter(run=source, state=CheckpointState.COMPLETE).order_by("-step")
    found = complete.first() if step is None else complete.filter(step=step).first()
    if found is None:
        steps = ", ".join(str(row.step) for row in complete) or "none"
        what = "no checkpoint" if step is None else f"no checkpoint of step {step}"
        raise NotFound(f"Run {source.key} has {what}. Steps with one: {steps}.")
    return found


def plan(source: Run, *, step: int | None = None, with_optimizer: bool = False) -> Fork:
    """A new run from a checkpoint of ``source``; nothing is stored yet."""
    return Fork(new_key(), find_checkpoint(source, step), with_optimizer)


def plan_series(source: Run, steps: str) -> Fork:
    """An eval run of several checkpoints of ``source``: `25,50`, or `*` for all that are complete. Nothing is stored.

    Raises Invalid, NotFound.
    """
    if steps == "*":
        found = list(Checkpoint.objects.filter(run=source, state=CheckpointState.COMPLETE).order_by("step"))
        found = found or [find_checkpoint(source, None)]
    else:
        wanted = sorted({parse(f"{source.key}@{step}")[1] for step in steps.split(",")}, key=lambda step: step or 0)
        found = [find_checkpoint(source, step) for step in wanted]
    return Fork(new_key(), found[0], with_optimizer=False, series=tuple(found))


def check(fork: Fork, config: RunConfig) -> None:
    """Raise Invalid when the optimizer state to go on with is of other parameters, or the adapter to start from is in
    the weights already."""
    checkpoint, fields = fork.checkpoint, {}
    if config.kind == "external":
        fields["fork_from"] = "an external run has no weights of ours to start from"
    elif fork.with_optimizer and (config.model.lora.rank or checkpoint.run.parsed.model.lora.rank):
        fields["fork_optimizer"] = "the state of a LoRA run is of its adapter, and the fork has another. Leave it out"
    elif fork.with_optimizer and config.optimizer.kind != checkpoint.run.parsed.optimizer.kind:
        fields["fork_optimizer"] = f"{name_of(checkpoint)} was trained with another optimizer. Leave it out"
    if _is_merged(config.model.lora.path, checkpoint.run):
        why = f"{name_of(checkpoint)} has this adapter merged in already, and would get it twice"
        fields["model.lora.path"] = f"{why}. Leave it out: the fork gets an adapter of its own"
    if fields:
        raise Invalid("Nothing was launched: the run cannot be forked so.", fields=fields)


def hold(fork: Fork, config: RunConfig) -> dict[str, Any]:
    """Columns of the new run; locks the checkpoints, which are kept from then on. Call it in the run's transaction.

    Raises Conflict when one was deleted meanwhile, Invalid as `check`.
    """
    check(fork, config)
    ids = {each.pk for each in (fork.checkpoint, *fork.series)}
    held = Checkpoint.objects.select_for_update(of=["self"]).select_related("run").filter(pk__in=ids).order_by("pk")
    rows = {row.pk: row for row in held}
    for checkpoint in rows.values():
        if checkpoint.state != CheckpointState.COMPLETE:
            raise Conflict(f"Checkpoint {name_of(checkpoint)} was deleted meanwhile. Take another step.")
    return {"key": fork.key, "forked_from": rows[fork.checkpoint.pk], "fork_optimizer": fork.with_optimizer}


def _is_merged(adapter: str, source: Run) -> bool:
    """Whether an adapter is what a run's own began from, or one that the run wrote: its merged weights hold either."""
    began_from = source.parsed.model.lora
    if not adapter or not began_from.rank:
        return False
    path = Path(adapter)
    return path == Path(began_from.path) or path.is_relative_to(source.directory)


def register_series(run: Run, checkpoints: Sequence[Checkpoint], *, actor: str) -> None:
    """The checkpoints that an eval run measures are its policy versions. Their files are made when their turn comes."""
    rows = PolicyVersion.objects.bulk_create(
        PolicyVersion(
            run=run,
            version=checkpoint.step,
            checkpoint=checkpoint,
            path=str(run.directory / "weights" / f"step_{checkpoint.step}"),
            size_bytes=checkpoint.size_bytes,
        )
        for checkpoint in checkpoints
    )
    record_creation(rows, run_id=run.pk, state=PolicyVersionState.WRITTEN, actor=actor)
