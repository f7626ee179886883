"""Remove weights and checkpoints that nobody needs any more. Their rows stay for lineage.

Only here, because only the store knows what is live: a trainer that deleted by age would, while a server is restarted,
delete the very version that server is to load. What is live, newer than live, or the newest checkpoint stays.
"""

from contextlib import suppress
from pathlib import Path

from environments.disk import DELETING, PARTIAL, clear_away, remove_directory
from rollouts.models import Checkpoint, PolicyVersion, ReplicaKind, Run, RunKind
from rollouts.selectors import fleet
from rollouts.services.runs import checkpoints, policies
from rollouts.states import CheckpointState, ReplicaState
from workers.database import give_back
from workers.fleet import serving


def prune(run: Run) -> None:
    """Remove superseded weights beyond `trainer.keep_weights` but those that a server was started with which does not
    serve yet, for it may be in a queue for hours; and the checkpoints that the store gives up."""
    root = run.directory.resolve()
    superseded = policies.list_prunable(run)
    if superseded:
        starting = fleet.list_alive(run, ReplicaKind.INFERENCE).filter(state=ReplicaState.STARTING)
        awaited = {serving.started_with(each) for each in starting}
        superseded = [version for version in superseded if version.version not in awaited]
    for version in superseded:
        _remove(Path(version.path), root)
    policies.forget_files([version for version in superseded if not Path(version.path).exists()])
    # The row first: a trainer must not be offered a checkpoint that is going away.
    for checkpoint in checkpoints.delete_checkpoints(run):
        _remove(Path(checkpoint.path), root)


def let_go(run: Run) -> None:
    """Remove what nobody needs of a run that ends, once its processes are gone: what they were writing, what was being
    removed, and the models that an evaluation made of checkpoints to measure them. Their
    tokenizers stay: pages read tokens by them."""
    root = run.directory.resolve()
    for folder in (root / "weights", root / "checkpoints"):
        if folder.is_symlink():
            continue
        for path in [*folder.glob(f"*{PARTIAL}*"), *folder.glob(f"*{DELETING}")]:
            clear_away(path)
    for checkpoint in Checkpoint.objects.filter(run=run, state=CheckpointState.DELETED):
        if Path(checkpoint.path).exists():
            _remove(Path(checkpoint.path), root)
    if run.kind == RunKind.EVAL:
        for version in PolicyVersion.objects.filter(run=run, checkpoint__isnull=False):
            for file in Path(version.path).glob("*.safetensors"):
                if file.resolve().is_relative_to(root):
                    file.unlink(missing_ok=True)


def _remove(path: Path, root: Path) -> None:
    """Delete a directory below `root`, or what can be deleted of it."""
    if path.resolve().is_relative_to(root):
        give_back()
        with suppress(OSError):
            remove_directory(path)
