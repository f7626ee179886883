"""Runs that start from a checkpoint of another run: its weights are their policy version 0."""

from pathlib import Path
from typing import Any, NamedTuple

from django.conf import settings

from rollouts.errors import Conflict, Invalid, NotFound
from rollouts.models import Checkpoint, Run
from rollouts.models.run import new_key
from rollouts.states import CheckpointState
from trainers.config import RunConfig
from trainers.origins import Origin, OriginKind


class Fork(NamedTuple):
    """A run that is about to be launched, and the checkpoint it starts from."""

    key: str
    """Of the new run: its start model lies in its own directory."""
    checkpoint: Checkpoint
    with_optimizer: bool

    @property
    def overrides(self) -> dict[str, str]:
        """What the new run's config has to be resolved with, over everything else."""
        return {"model.path": str(Path(settings.ROLLYARD_RUNS_DIR) / self.key / "weights" / "step_0")}

    @property
    def origin(self) -> Origin:
        """Where the overridden values come from, as the run's page shows it."""
        return Origin(OriginKind.FORK, name_of(self.checkpoint))


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


def hold(fork: Fork, config: RunConfig) -> dict[str, Any]:
    """Columns of the new run; locks the checkpoint, which is kept from then on. Call it in the run's transaction.

    Raises Conflict when it was deleted meanwhile, Invalid when its optimizer state is of other parameters.
    """
    checkpoint = Checkpoint.objects.select_for_update(of=["self"]).select_related("run").get(pk=fork.checkpoint.pk)
    if checkpoint.state != CheckpointState.COMPLETE:
        raise Conflict(f"Checkpoint {name_of(checkpoint)} was deleted meanwhile. Fork from another step.")
    fields = {}
    if config.kind == "external":
        fields["fork_from"] = "an external run has no weights of ours to start from"
    elif fork.with_optimizer and (config.model.lora.rank or checkpoint.run.parsed.model.lora.rank):
        fields["fork_optimizer"] = "the state of a LoRA run is of its adapter, and the fork has another. Leave it out"
    elif fork.with_optimizer and config.optimizer.kind != checkpoint.run.parsed.optimizer.kind:
        fields["fork_optimizer"] = f"{name_of(checkpoint)} was trained with another optimizer. Leave it out"
    if fields:
        raise Invalid("Nothing was launched: the run cannot be forked so.", fields=fields)
    return {"key": fork.key, "forked_from": checkpoint, "fork_optimizer": fork.with_optimizer}
