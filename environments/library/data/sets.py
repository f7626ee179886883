"""What environments over the rows of a data set have in common: which rows there are, what is held out, in what order.

A class says how a row is read. For all of them:

- a missing column is a mistake in the arguments; a row in which something is missing is left out and counted;
- of rows that ask the same the first counts, and what the eval split asks is left out of the training split; where both
  are the same files, an eighth of the questions is held out, by their text;
- problems come in an order that their text and the seed give, so that files sorted by subject are mixed, and neither
  shards nor further rows change the order of the others.
"""

import logging
import re
from abc import abstractmethod
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, ClassVar, NamedTuple, TypeVar

from msgspec import Meta

from environments.library.data.files import DataFiles
from environments.library.data.rows import Rows, read
from environments.library.splits import digest, is_held_out
from environments.rewards.rewarded import Rewarded, RewardedArgs
from environments.types import JsonObject, Message, Problem, Split

_logger = logging.getLogger(__name__)
_MOST_LEFT_OUT = 0.5
"""Share of rows without what is needed: beyond it this is another kind of data set."""
_KEY_CHARACTERS = 16
_REASONS = 5
"""Most that are told why rows are left out."""


class DataSetArgs(RewardedArgs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of every environment over a data set; its own come beside them."""

    data: Annotated[
        str, Meta(min_length=1, description="A directory, a .jsonl, .json or .parquet file, or a hub name org/name.")
    ]
    config: Annotated[str, Meta(description="Which config of the data set, where it has several; * for all.")] = ""
    train_split: Annotated[str, Meta(description="Which split to train on; by default train.")] = ""
    eval_split: Annotated[
        str, Meta(description="Which split is held out; by default test or validation, else an eighth of train.")
    ] = ""
    system: Annotated[str, Meta(description="A system message before every question.")] = ""
    instruction: Annotated[
        str | None, Meta(description="What follows a question; by default the environment's own; empty for nothing.")
    ] = None
    seed: Annotated[int, Meta(description="Seed of the order of the problems.")] = 0


class Question(NamedTuple):
    """What a row asks."""

    text: str
    """Tells it from other questions, whatever the arguments."""
    data: JsonObject
    """The answer, and what else scoring needs."""
    given: Sequence[Message] = ()
    """The conversation that asks it, where the row itself has one."""


class Unusable(Exception):
    """A row lacks something; says what."""


class _Asked(NamedTuple):
    """A row that is a problem."""

    order: str
    text: str
    """As a digest."""
    is_held_out: bool
    number: int


ArgsT = TypeVar("ArgsT", bound=DataSetArgs)


class DataSetEnvironment(Rewarded[ArgsT]):
    """Poses what the rows of a data set ask."""

    default_config: ClassVar[str] = ""
    """Config where none is named and there are several."""
    default_instruction: ClassVar[str] = ""

    def __init__(self, args: ArgsT) -> None:
        super().__init__(args)
        self.files = DataFiles(args.data, args.config, otherwise=self.default_config)
        self.left_out: Counter[str] = Counter()
        """Rows that are no problem, by reason."""
        train, held_out = self.files.sources(args.train_split, args.eval_split)
        if not held_out:
            known = ", ".join(self.files.splits)
            raise ValueError(f"eval_split: set it to one of the splits that {args.data} has: {known}")
        self.rows = {Split.TRAIN: read(train) if train else Rows([]), Split.EVAL: read(held_out)}
        asked = self._asked(self.rows[Split.EVAL])
        if train == held_out:
            parts = [each for each in asked if not each.is_held_out], [each for each in asked if each.is_held_out]
        else:
            held = {each.text for each in asked}
            parts = [each for each in self._asked(self.rows[Split.TRAIN]) if each.text not in held], asked
        self._numbers = {split: array("q", _ordered(part)) for split, part in zip(Split, parts, strict=True)}
        self.check_found()

    @abstractmethod
    def reads(self, columns: Sequence[str]) -> Sequence[str]:
        """Return which of the columns it reads. Raises ValueError where one is missing."""

    @abstractmethod
    def question(self, row: JsonObject) -> Question | None:
        """Read a row; None: the arguments do not ask for it. Raises Unusable."""

    def check_found(self) -> None:
        """Called when all rows were read. Raises ValueError where the arguments leave no problem."""
        if not any(self._numbers.values()):
            raise ValueError(f"data: {self.args.data} has no row that these arguments ask for")

    def count(self, split: Split) -> int:
        found = len(self._numbers[split])
        if not found and split is Split.TRAIN:
            raise self.files.nothing_to_train_on("set train_split and eval_split to one split, which is divided then")
        return found

    def problem(self, split: Split, index: int) -> Problem:
        question = self.asked(split, index)
        return Problem(key=key_of(question), messages=self.messages(question), data=question.data)

    def asked(self, split: Split, index: int) -> Question:
        """What problem `index` of a split asks."""
        question = self.question(self.rows[split][self._numbers[split][index]])
        assert question is not None
        return question

    def messages(self, question: Question) -> list[Message]:
        """The conversation that poses a question."""
        *before, last = question.given or [Message("user", question.text)]
        if self.args.system:
            before = [*self.system(), *(each for each in before if each.role != "system")]
        return [*before, Message("user", self.instructed(last.text)) if last.role == "user" else last]

    def system(self) -> list[Message]:
        """The system message, if there is one."""
        return [Message("system", self.args.system)] if self.args.system else []

    def instructed(self, text: str) -> str:
        """A text with the instruction below it."""
        instruction = self.default_instruction if self.args.instruction is None else self.args.instruction
        return f"{text}\n\n{instruction}" if instruction else text

    def _asked(self, rows: Rows) -> list[_Asked]:
        """The rows that are problems. Raises ValueError where most cannot be."""
        if not len(rows):
            return []
        found: dict[str, _Asked] = {}
        faults: Counter[str] = Counter()
        for number, row in enumerate(rows.scan(self.reads(rows.columns))):
            try:
                question = self.question(row)
            except Unusable as fault:
                faults[str(fault)] += 1
                continue
            if question is None:
                continue
            text = digest(question.text)
            if text in found:
                faults["asks what another does"] += 1
            else:
                order = digest(f"{self.args.seed}/{text}")
                found[text] = _Asked(order, text, is_held_out(question.text), number)
        self._note(faults, len(rows))
        return list(found.values())

    def _note(self, faults: Counter[str], count: int) -> None:
        self.left_out += faults
        lacking = sum(faults.values()) - faults["asks what another does"]
        told = "; ".join(f"{times} of {count} rows: {reason}" for reason, times in faults.most_common(_REASONS))
        if lacking > _MOST_LEFT_OUT * count:
            raise ValueError(f"data: most rows of {self.args.data} are no problems of {self.name}: {told}")
        if told:
            _logger.warning("%s: left out %s", self.args.data, told)


class Subjects:
    """Subjects that are asked for, however they are written: `number_theory` is "Number Theory"."""

    def __init__(self, asked: Sequence[str]) -> None:
        self._asked = {_plain(subject): subject for subject in asked}
        self._seen: dict[str, str] = {}

    def wants(self, subject: str) -> bool:
        """Whether it is one of them; all are where none is named."""
        plain = _plain(subject)
        self._seen.setdefault(plain, subject)
        return not self._asked or plain in self._asked

    def check(self) -> None:
        """Raise ValueError for one that no row has."""
        if unknown := [subject for plain, subject in self._asked.items() if plain not in self._seen]:
            known = ", ".join(sorted(filter(None, self._seen.values()))) or "none"
            raise ValueError(f"subjects: no row is of {', '.join(unknown)}; there are {known}")


def key_of(question: Question) -> str:
    """The problem's key."""
    return digest(question.text)[:_KEY_CHARACTERS]


def required(data: str, columns: Sequence[str], *names: str) -> list[str]:
    """The names, if all of them are columns. Raises ValueError."""
    if missing := [name for name in names if name not in columns]:
        raise ValueError(
            f"data: {data} has no column {', '.join(missing)}; it has {', '.join(columns)}: rename them, or use the "
            "environment `dataset`"
        )
    return list(names)


def text_in(row: JsonObject, column: str) -> str:
    """The text in a column, stripped. Raises Unusable if there is none."""
    value = row.get(column)
    if not isinstance(value, str) or not value.strip():
        raise Unusable(f"{column} has no text")
    return value.strip()


def _plain(subject: str) -> str:
    return "_".join(re.findall(r"\w+", subject.lower().replace("&", " and ").replace("_", " ")))


def _ordered(asked: Iterable[_Asked]) -> list[int]:
    return [each.number for each in sorted(asked)]
