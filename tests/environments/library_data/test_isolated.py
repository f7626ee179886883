"""Data sets are read in a process of its own: what comes over the pipe is what is here."""

import asyncio
import os
import sys
from pathlib import Path

from environments.isolated import Isolated
from environments.types import FinishedRollout, Message, Problem, Split
from tests.environments.library_data.tables import loaded, score, write


def test_an_isolated_process_poses_and_scores_the_same(tmp_path: Path) -> None:
    """As a driver makes it, with the hub's cache that it was given."""
    rows = [
        {"question": f"How much is {number} + 1?", "answer": f"One more.\n#### {number + 1}"} for number in range(9)
    ]
    folder = tmp_path / "hub" / "datasets--owner--sums" / "snapshots" / "abc" / "main"
    write(folder / "train-00000-of-00001.parquet", rows[:5])
    write(folder / "test-00000-of-00001.parquet", rows[5:])

    async def act() -> tuple[list[int], Problem, list[float]]:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "environments.isolated.host"),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env={**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub")},
        )
        environment = Isolated("gsm8k", process)
        try:
            await environment.load({"data": "owner/sums"})
            counts = [await environment.ask_count(split, within_s=60) for split in Split]
            problem = await environment.ask_problem(Split.EVAL, 0, within_s=60)
            replies = [rf"\boxed{{{problem.data['answer']}}}", r"\boxed{77}"]
            scores = await environment.score_group(problem, [finished(problem, reply) for reply in replies])
            return counts, problem, [each for each in scores if isinstance(each, float)]
        finally:
            await environment.aclose()

    counts, problem, scores = asyncio.run(asyncio.wait_for(act(), 90))
    here = loaded("gsm8k", folder)
    assert counts == [5, 4]
    assert problem == here.problem(Split.EVAL, 0)
    assert scores == [1.0, 0.0]
    assert score(here, problem, rf"\boxed{{{problem.data['answer']}}}") == 1.0


def finished(problem: Problem, reply: str) -> FinishedRollout:
    messages = [*problem.messages, Message("assistant", reply)]
    return FinishedRollout(token_ids=[], loss_mask=[], inference_logprobs=[], messages=messages)
