"""What a name of the hub stands for: a snapshot in the cache of this account, and for a run always the same.

A name means another snapshot once somebody has fetched it anew. So a run notes the revision that it began with, in a
directory of its own, and goes on with that.
"""

from pathlib import Path

from environments import disk
from trainers.run_config import ModelConfig
from trainers.run_config.data import DATA_SUFFIXES, is_hub_name

_PATTERNS = {
    "model": ["*.json", "*.jinja", "*.model", "*.py", "*.safetensors", "*.txt", "*.tiktoken"],
    "dataset": ["README.md", *(f"*{suffix}" for suffix in DATA_SUFFIXES)],  # it says which files are which
}


def snapshot(kind: str, name: str, notes: Path | None = None) -> Path:
    """Where a model or a data set lies, fetched if it can be; files only, of which nothing is loaded or run.

    `notes` is the directory in which a run notes the revision. Raises what the hub's client raises.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    disable_progress_bars()  # thousands of control characters in a log file
    note = None if notes is None else notes / f"{kind}s--{name.replace('/', '--')}.revision"
    revision = note.read_text() if note is not None and note.exists() else None
    found = Path(snapshot_download(name, repo_type=kind, allow_patterns=_PATTERNS[kind], revision=revision))
    if note is None or revision is not None:
        return found
    note.parent.mkdir(parents=True, exist_ok=True)
    disk.write_file(note, found.name.encode(), replace=False)
    return snapshot(kind, name, notes)  # of another rank, if that was faster


def pinned(model: ModelConfig, notes: Path) -> ModelConfig:
    """A model by a directory, also one that is named as the hub has it."""
    if not is_hub_name(model.path) or Path(model.path).exists():
        return model
    return model.model_copy(update={"path": str(snapshot("model", model.path, notes))})
