"""Rewards that start processes do so in the room of an environment too, whose sandbox has no other in it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from environments.types import FinishedRollout, Message, Split
from tests.accounts import let_others_pass
from tests.environments.rewards.replying import spoken
from tests.workers.making import make_started_run
from tests.workers.sandboxed import needs_sandbox
from workers import isolation

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, needs_sandbox]

ROW = {"question": "How much is a half?", "answer": "1/2", "tests": ["assert f(100) == 101"]}
REPLIES = {
    r"\boxed{2/4}": (1.0, 0.0),
    r"\boxed{9^{9^{9^9}}}": (0.0, 0.0),
    "```\ndef f(x): return x + 1\n```": (0.0, 1.0),
}
"""What is said -> what `math` and `unit_tests` give."""


def test_mathematics_and_tests_are_judged_in_a_room(tmp_path: Path) -> None:
    let_others_pass(tmp_path)
    tmp_path.chmod(0o755)
    for split in ("train", "test"):
        path = tmp_path / f"{split}.jsonl"
        path.write_text(json.dumps(ROW | {"question": f"{split}: {ROW['question']}"}) + "\n")
        path.chmod(0o644)
    rewards = [{"name": "math"}, {"name": "unit_tests", "args": {"all_or_nothing": True}}]
    args = {"data": str(tmp_path), "prompt": "question", "keep": ["tests"], "rewards": rewards}
    run = make_started_run(environments=[{"name": "dataset", "args": args}], batch__batch_size=16)
    rollouts = asyncio.run(scored(run))
    found = [(rollout.metrics["reward/math"], rollout.metrics["reward/unit_tests"]) for rollout in rollouts]
    assert found == list(REPLIES.values())


async def scored(run: Any) -> list[FinishedRollout]:
    (ref,) = run.parsed.environments
    assert isolation.is_isolated(ref)
    environment = await isolation.load(run, ref)
    try:
        problem = await asyncio.to_thread(environment.problem, Split.TRAIN, 0)
        rollouts = [spoken([*problem.messages, Message("assistant", reply)]) for reply in REPLIES]
        await environment.score_group(problem, rollouts)
        return rollouts
    finally:
        await isolation.close(environment)
