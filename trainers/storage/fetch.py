"""Fetch a model or a data set from the hub: `python -m trainers.storage.fetch KIND NAME`.

Files only, into the cache of this account: nothing of what is fetched is loaded or run.
"""

import sys

from trainers.run_config.data import DATA_SUFFIXES

_PATTERNS = {
    "model": ["*.json", "*.jinja", "*.model", "*.py", "*.safetensors", "*.txt", "*.tiktoken"],
    "dataset": [f"*{suffix}" for suffix in DATA_SUFFIXES],
}


def main() -> None:
    """Fetch; exits with a sentence on stderr when the hub does not give it and the cache does not have it."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    kind, name = sys.argv[1:]
    disable_progress_bars()
    try:
        snapshot_download(name, repo_type=kind, allow_patterns=_PATTERNS[kind])
    except Exception as error:  # noqa: BLE001 - of the hub's client, whose errors change with its version
        words = str(error).strip().partition("\n")[0]
        sys.exit(f"{type(error).__name__}: {words}" if words else type(error).__name__)


if __name__ == "__main__":
    main()
