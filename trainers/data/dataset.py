"""The data of a run: which lines each step trains on, and which are held out."""

from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from trainers.data.examples import parse_pair, parse_wanted, problem_of
from trainers.data.order import batch_indices, hold_out
from trainers.data.solutions import write_solutions
from trainers.data.sources import find_files
from trainers.data.table import Table
from trainers.errors import DataError
from trainers.run_config import RunConfig

Line = tuple[bytes, str]
"""A line of data and where it is from."""


class TrainingData:
    """Lines to train on, and lines to validate on. Nothing but numbers of lines is kept in memory."""

    def __init__(self, config: RunConfig, train: "Part", validation: "Part | None") -> None:
        assert config.data is not None, "the config refuses SFT runs without data"
        self._batch_size = config.data.batch_size
        self._every = config.data.validation.every if config.data.validation is not None else 0
        self._seed, self._max_steps = config.seed, config.max_steps
        self._train, self._validation = train, validation

    def batch(self, step: int) -> list[Line]:
        """The lines of one step: the same whenever it is asked."""
        return self._train.lines(batch_indices(len(self._train), self._batch_size, step, self._seed))

    def is_validated_after(self, step: int) -> bool:
        """Whether the held-out loss is due when `step` is done."""
        return self._validation is not None and ((step + 1) % self._every == 0 or step + 1 == self._max_steps)

    def validation_batches(self) -> Iterator[list[Line]]:
        """All held-out lines, a batch at a time, always in the same order; none without `data.validation`."""
        count = len(self._validation) if self._validation is not None else 0
        for first in range(0, count, self._batch_size):
            assert self._validation is not None
            yield self._validation.lines(range(first, min(first + self._batch_size, count)))


class Part:
    """Some lines of a table, numbered from 0."""

    def __init__(self, table: Table, indices: np.ndarray | None = None) -> None:
        self._table = table
        self._indices = indices

    def __len__(self) -> int:
        return len(self._table) if self._indices is None else len(self._indices)

    def lines(self, numbers: Iterable[int]) -> list[Line]:
        """The lines with these numbers."""
        indices = numbers if self._indices is None else (int(self._indices[number]) for number in numbers)
        return [self._table[index] for index in indices]


def open_dataset(config: RunConfig, spool_dir: Path, datasets: Path | None = None) -> TrainingData:
    """Find, check and number every line that `config.data` names. Raises DataError naming file, line and fix.

    Files that are not JSONL are written out in `spool_dir`, without a name: they vanish with this process. Solutions of
    the run's environments are written there too, and stay, as does which revision a name of the hub stood for.
    `datasets` is where versions of datasets were written.
    """
    data = config.data
    assert data is not None, "the config refuses SFT runs without data"
    parse = parse_wanted if data.preference is None else parse_pair
    held_out = data.validation if data.validation is not None and not data.validation.path else None
    problems = array("Q")

    def check(line: bytes, where: str) -> None:
        parse(line, where, data.roles)
        if held_out is not None:
            problems.append(problem_of(line) if held_out.hold_out == "problems" else len(problems))

    if data.trains_on_solutions:
        found = [write_solutions(config, spool_dir)]
    else:
        found = find_files(data.path, data.split, datasets=datasets, notes=spool_dir)
    train = Table(found, spool_dir, check)
    if data.validation is None:
        return TrainingData(config, Part(train), None)
    if data.validation.path:
        files = find_files(data.validation.path, data.validation.split, "data.validation", datasets, spool_dir)
        return TrainingData(config, Part(train), Part(Table(files, spool_dir, check)))
    if len(train) < 2:
        raise DataError(f"data.validation.share: {found[0]} has one example, and none to hold out. Give more data.")
    if min(problems) == max(problems):
        fix = "Give more data, or set data.validation.hold_out to 'lines'."
        raise DataError(f"data.validation.share: {found[0]} has one problem, and none to hold out. {fix}")
    kept, held = hold_out(np.frombuffer(problems, np.uint64), data.validation.share, config.seed)
    return TrainingData(config, Part(train, kept), Part(train, held))
