"""What is an answer's time and fault when reasoning_gym scores it, with a library of ours in place of the real one."""

import asyncio
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from environments.bridges import reasoning_gym
from environments.bridges.reasoning_gym import ReasoningGym, ReasoningGymArgs
from environments.types import Message, Problem, Split
from tests.environments.library_tools.playing import rollout_of

pytestmark = pytest.mark.slow  # each starts a process that imports sympy

FACTORY = """
import os, time

class Sums:
    def __init__(self, place, seed, size):
        self.place = place
    def __getitem__(self, index):
        told = open(self.place).read()
        if told == "slow": time.sleep(1.5)
        if told == "hangs": time.sleep(3600)
        if told == "raises": raise MemoryError("none left")
        if told == "dies": os._exit(1)
        return {"question": f"{index} + 1? {told == 'other'}", "answer": str(index + 1)}
    def score_answer(self, answer, entry):
        if answer == "for ever":
            while True: pass
        if answer == "starved":
            time.sleep(1.5)
            return 1.0
        right, entry["answer"] = entry["answer"], "spoilt"
        return float(answer == right)

DATASETS = {"sums": Sums}

def create_dataset(name, **options):
    return Sums(**options)
"""
MODULES = ("algorithmic.binary_matrix", "algorithmic.spiral_matrix", "algorithmic.string_insertion", "games.n_queens")


class Sums:
    """The environment, and how its library behaves from now on."""

    def __init__(self, directory: Path) -> None:
        self._behaviour = directory / "behaviour"
        self.behave("well")
        self.environment = ReasoningGym(ReasoningGymArgs(id="sums", options={"place": str(self._behaviour)}))
        self.problem: Problem = self.environment.problem(Split.TRAIN, 3)

    def behave(self, how: str) -> None:
        """The word is in FACTORY."""
        self._behaviour.write_text(how)

    def scores(self, *answers: str) -> Any:
        """Of a group that gives these."""
        rollouts = [rollout_of(self.problem, Message("assistant", f"<answer>{said}</answer>")) for said in answers]
        return asyncio.run(self.environment.score_group(self.problem, rollouts))


@pytest.fixture
def sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sums]:
    for module in ("factory", *MODULES):
        path = tmp_path / "packages" / "reasoning_gym" / f"{module.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(textwrap.dedent(FACTORY) if module == "factory" else "")
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    monkeypatch.setattr(reasoning_gym, "version", lambda name: "0.1.25")
    monkeypatch.setattr(reasoning_gym, "_SCORING_S", 1.0)
    found = Sums(tmp_path)
    yield found
    worker = found.environment._worker
    if worker._process is not None:
        worker._end(worker._process)


def test_the_time_that_an_item_takes_to_be_made_is_not_the_answers(sums: Sums) -> None:
    sums.behave("slow")
    assert sums.scores("4", "x") == [1.0, 0.0]


def test_an_answer_is_scored_on_an_item_that_no_other_scorer_has_had(sums: Sums) -> None:
    assert sums.scores("4", "4", "spoilt") == [1.0, 1.0, 0.0]


def test_a_busy_machine_makes_no_right_answer_wrong(sums: Sums) -> None:
    assert sums.scores("starved") == [1.0]


def test_an_answer_that_takes_too_long_earns_nothing_and_the_next_is_scored(sums: Sums) -> None:
    began = time.monotonic()
    assert sums.scores("for ever", "4") == [0.0, 1.0]
    assert time.monotonic() - began < 60  # it ended at all


@pytest.mark.parametrize(
    ("behaviour", "told"),
    [
        ("raises", "MemoryError: none left"),
        ("dies", "ended its process"),
        ("hangs", "more than 1 s"),
        ("other", "other"),
    ],
)
def test_an_item_that_cannot_be_made_again_makes_no_answer_wrong(
    sums: Sums, monkeypatch: pytest.MonkeyPatch, behaviour: str, told: str
) -> None:
    sums.behave(behaviour)
    monkeypatch.setattr(reasoning_gym, "_MAKING_S", 1.0)
    with pytest.raises(ValueError, match=told):
        sums.scores("4")
