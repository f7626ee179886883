"""What a supervised run trains on, and how."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, model_validator

from trainers.run_config.section import ConfigProblem, CrossFieldError, Section, is_stored

DATA_SUFFIXES = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".parquet", ".arrow")
"""Ends of the names of data files."""
_SPLIT = r"^\w[\w.-]*$"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
Role = Literal["system", "developer", "user", "assistant", "tool"]


_DATASET = "dataset:"


def dataset_name(path: str) -> str | None:
    """`NAME@3` of `dataset:NAME@3`, which names a version of a dataset of the run's project; None of other paths."""
    return path.removeprefix(_DATASET) if path.startswith(_DATASET) else None


def dataset_path(name: str) -> str:
    """What `data.path` calls a version."""
    return f"{_DATASET}{name}"


def is_hub_name(name: str) -> bool:
    """Whether the hub may have a model or a data set of this name. No file is looked for."""
    return bool(_HUB_NAME.fullmatch(name)) and not name.endswith(DATA_SUFFIXES)


class ValidationConfig(Section):
    """Examples that are never trained on, and how often the loss on them is measured."""

    path: str = ""
    """Examples of their own, in any form that `data.path` takes."""
    split: str = Field(default="validation", pattern=_SPLIT)
    """Which split of that path, as `data.split`."""
    share: float = Field(default=0.0, ge=0, lt=1)
    """Share of the training data to hold out instead; the seed chooses which of it."""
    hold_out: Literal["problems", "lines"] = "problems"
    """What a share is of. `problems` keeps lines of one problem together: those with the same `problem_key`, else the
    same prompt. `lines` takes each for itself, for data whose lines all have one prompt."""
    every: int = Field(default=50, ge=1)
    """Steps between measurements; the last step is always measured."""

    @model_validator(mode="before")
    @classmethod
    def _hold_out_what_was_held_out(cls, values: Any, info: ValidationInfo) -> Any:
        """Runs of before there was a choice go on with their lines."""
        return {"hold_out": "lines", **values} if is_stored(info) and isinstance(values, dict) else values

    @model_validator(mode="after")
    def _need_one_source(self) -> Self:
        if bool(self.path) == bool(self.share):
            message = "needs either a path or a share, one of them. Set `data.validation.path` or `.share`."
            raise CrossFieldError([ConfigProblem("share", message)])
        return self


class PreferenceConfig(Section):
    """Learn which of two answers is better (DPO, arXiv:2305.18290) instead of imitating one."""

    beta: float = Field(gt=0)
    """How closely the model stays to where it started: larger is closer. 0.1 is usual."""


class DataConfig(Section):
    """What a supervised run trains on."""

    path: str = ""
    """JSONL (also gzipped), Parquet or Arrow file, a directory of them or one that Hugging Face's `datasets` saved, the
    name of a data set of the hub, or `dataset:NAME@3`: version 3 of a dataset of the run's project. Examples have
    `messages`, or `prompt` and `completion`; pairs have `chosen` and `rejected`."""
    solutions: bool = False
    """Without a path, train on solutions that the run's environments give for their own problems."""
    echo: float = Field(default=0.0, ge=0, le=1)
    """Share of these solutions whose last answer repeats the problem instead: flawed examples leave RL something to
    mend."""
    split: str = Field(default="train", pattern=_SPLIT)
    """Which split of a directory or of a data set of the hub, as its README or the names of its files have it, such as
    `train_sft`; a word of that name is enough where no other has it. Of no meaning for a file."""
    batch_size: int = Field(default=64, ge=1)
    """Examples, or pairs, per optimizer step."""
    roles: Annotated[list[Role], Field(min_length=1)] = ["assistant"]
    """Whose messages are trained on."""
    turns: Literal["all", "each", "last"] = "all"
    """`all` trains on all turns of these roles at once, `each` on every one behind its own prompt, as a sequence of its
    own, `last` on the last one only. A chat template that rewrites earlier turns, by dropping their reasoning for
    example, needs `each` or `last`: every turn was then written after another prompt."""
    too_long: Literal["cut", "drop"] = "cut"
    """What becomes of an example with more than `trainer.seq_len` tokens."""
    validation: ValidationConfig | None = None
    """Loss on examples that are never trained on; without this section none is measured."""
    preference: PreferenceConfig | None = None
    """Learn from pairs of answers; without this section the examples are imitated."""

    @property
    def trains_on_solutions(self) -> bool:
        """Whether the examples come from the environments: a path wins, so that a preset can be given another file."""
        return self.solutions and not self.path

    @model_validator(mode="after")
    def _need_a_source(self) -> Self:
        if not self.path and not self.solutions:
            message = "is required, or `data.solutions`: name a JSONL or Parquet file of examples."
            raise CrossFieldError([ConfigProblem("path", message)])
        if self.trains_on_solutions and self.preference is not None:
            message = "are single answers, and preference is between two. Name a file of pairs in `data.path`."
            raise CrossFieldError([ConfigProblem("solutions", message)])
        return self

    @model_validator(mode="after")
    def _refuse_answers_in_parts(self) -> Self:
        if self.preference is not None and self.turns == "each":
            message = "'each' takes an answer apart, and preference is between whole answers. Use 'all' or 'last'."
            raise CrossFieldError([ConfigProblem("turns", message)])
        return self
