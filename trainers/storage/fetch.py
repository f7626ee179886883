"""Fetch a model or a data set from the hub: `python -m trainers.storage.fetch KIND NAME`."""

import sys

from trainers.hub import snapshot


def main() -> None:
    """Fetch; exits with a sentence on stderr when the hub does not give it and the cache does not have it."""
    kind, name = sys.argv[1:]
    try:
        snapshot(kind, name)
    except Exception as error:  # noqa: BLE001 - of the hub's client, whose errors change with its version
        words = str(error).strip().partition("\n")[0]
        sys.exit(f"{type(error).__name__}: {words}" if words else type(error).__name__)


if __name__ == "__main__":
    main()
