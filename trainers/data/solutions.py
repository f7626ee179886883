"""Solutions of a run's environments as a data file of that run."""

import json
from itertools import chain, zip_longest
from pathlib import Path

from environments import disk
from environments.errors import RegistryError
from environments.solutions import NoSolutions, solved
from trainers.errors import DataError
from trainers.run_config import RunConfig


def write_solutions(config: RunConfig, directory: Path) -> Path:
    """Write a line for every example that the run trains on; returns the file. Environments take turns.

    The lines are a function of the config: every rank, at every start, writes the same, and a file that is there is
    complete. Raises DataError.
    """
    data = config.data
    assert data is not None, "the config refuses SFT runs without data"
    path = directory / "solutions.jsonl"
    if path.exists():
        return path
    names = config.environments
    count = -(-config.max_steps * data.batch_size // len(names))
    directory.mkdir(parents=True, exist_ok=True)
    try:
        turns = zip_longest(*(solved(each.name, each.args, count, echo=data.echo) for each in names))
        with disk.writing(path) as file:
            for line in filter(None, chain.from_iterable(turns)):
                file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
    except (NoSolutions, RegistryError) as error:
        raise DataError(f"data.solutions: {error}") from None
    return path
