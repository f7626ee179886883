"""Environments of ours that open somebody's files play in a room, which is shown those files and no others."""

import json
from pathlib import Path

import pytest

from rollouts.models import Rollout, Run, ScoredGroup
from rollouts.states import GroupState
from tests.accounts import let_others_pass
from tests.workers.making import make_server, make_started_run
from tests.workers.sandboxed import needs_sandbox
from tests.workers.stub_server import stub_server
from tests.workers.test_episodes import driving
from tests.workers.waiting import eventually
from workers import isolation

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, needs_sandbox]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Rows as gsm8k has them, where the account of runs may read."""
    let_others_pass(tmp_path)
    tmp_path.chmod(0o755)
    rows = [{"question": f"What is {n} + {n}?", "answer": f"It is {2 * n}.\n#### {2 * n}"} for n in range(64)]
    for split in ("train", "test"):
        path = tmp_path / f"{split}.jsonl"
        path.write_text("".join(json.dumps(row | {"question": f"{split}: {row['question']}"}) + "\n" for row in rows))
        path.chmod(0o644)
    return tmp_path


def told(run: Run) -> str:
    groups = ScoredGroup.objects.filter(run=run)
    return str([(group.state, group.state_reason) for group in groups])


def test_a_data_set_is_played_from_a_room(data: Path) -> None:
    run = make_started_run(environments=[{"name": "gsm8k", "args": {"data": str(data)}}], batch__batch_size=16)
    (ref,) = run.parsed.environments
    assert isolation.is_isolated(ref)
    with stub_server() as stub:
        make_server(run, stub.url)
        with driving(run):
            scored = ScoredGroup.objects.filter(run=run, state__in=[GroupState.READY, GroupState.FILTERED])
            eventually(lambda: scored.count() >= 2, what=lambda: told(run))
    rollout = Rollout.objects.filter(group__in=scored).first()
    assert rollout is not None
    assert rollout.messages[-2]["content"].startswith("train: What is")
    assert rollout.metrics["reward/math"] == 0.0, "the stub says nothing that is a number"
