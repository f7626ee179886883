"""Environments of other libraries and agents outside, all unmodified, in one real run: what they sampled is trained,
exactly."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.accounts import let_others_pass
from tests.e2e import outside
from tests.e2e.calling_model import write_calling_model
from tests.e2e.yard import Yard, until
from tests.lanes import long_lane

pytestmark = [pytest.mark.e2e, pytest.mark.vllm]

ROOT = Path(__file__).parents[2]
BRIDGED = ROOT / "tests" / "environments" / "bridges"
VERIFIERS, ATROPOS = ROOT / ".venv-verifiers" / "envs" / "verifiers", ROOT / ".venv-atropos"
STEPS = 6
ON_POLICY = 1e-7
"""Mismatch KL of a group, far above rounding. The weights one step before or after give more on the same tokens: so the
learning rate is there from the first step."""
HELD_ENV = '''

import os


class HeldEnv(WordsEnv):
    """Waits while its file has no date: a room sees no other file that a test could change."""

    async def collect_trajectories(self, item: Any) -> tuple[ScoredDataGroup | None, list[Any]]:
        while not os.stat(__file__).st_mtime:
            await asyncio.sleep(0.05)
        return await super().collect_trajectories(item)
'''


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """A model that knows tools, tasksets and a class of Atropos, where the account of runs may read."""
    let_others_pass(tmp_path)
    write_calling_model(tmp_path / "model")
    shutil.copytree(BRIDGED / "tasksets" / "spelling", tmp_path / "spelling")
    (tmp_path / "words.py").write_text((BRIDGED / "atropos_envs.py").read_text() + HELD_ENV)
    for path in tmp_path.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return tmp_path


@contextmanager
def held(words: Path) -> Iterator[None]:
    """No further group of Atropos ends. Every batch has some and `batch.window` is 0: soon the trainer waits."""
    os.utime(words, (0, 0))
    try:
        yield
    finally:
        words.touch()


@long_lane("each is played in tests/environments/bridges, and tests/e2e/test_tools_run.py trains on calls of tools")
@pytest.mark.skipif(not VERIFIERS.exists(), reason="NO VERIFIERS: run make verifiers-venv")
@pytest.mark.skipif(not ATROPOS.exists(), reason="NO ATROPOSLIB: run make atropos-venv")
@pytest.mark.skipif(not (outside.AGENTS / ".installed").exists(), reason="NO AGENTS: run make agents-venv")
def test_verifiers_atropos_an_agent_framework_and_the_openai_sdk_train_a_run(yard: Yard, places: Path) -> None:
    spelling, words = str(places / "spelling"), f"{places / 'words.py'}:HeldEnv"
    for name in (f"verifiers:{spelling}", f"atropos:{words}", str(VERIFIERS), str(ATROPOS)):
        yard.rollyard("trust", "allow", "environment", name)
    config = places / "run.toml"
    config.write_text(
        f"""
[[environments]]
name = "calculator"
process = "isolated"
[[environments]]
name = "verifiers"
label = "chat"
python = "{VERIFIERS}"
args = {{ id = "{spelling}" }}
[[environments]]
name = "verifiers"
label = "train"
python = "{VERIFIERS}"
args = {{ id = "{spelling}", client = "train", renderer = "qwen3" }}
[[environments]]
name = "atropos"
python = "{ATROPOS}"
args = {{ path = "{words}" }}
"""
    )
    run: str = yard.rollyard(
        "launch",
        "calculator-rl",
        "--file",
        str(config),
        f"model.path={places / 'model'}",
        f"max_steps={STEPS}",
        "evaluation=null",
        "batch.batch_size=32",
        "sampling.group_size=4",
        "sampling.max_tokens=40",
        "algorithm.filter_zero_advantage=false",
        "algorithm.max_async_level=0",
        "algorithm.max_off_policy_steps=0",
        "batch.window=0",
        "optimizer.warmup_steps=0",
        "tracking.token_values_share=1",
    )["run"]
    players = outside.OutsidePlayers(yard, run)
    until(lambda: live_version(yard, run) >= 1, within_s=480, what="weights that were trained to be live")
    with held(places / "words.py"):
        played = players.play_until_in_time(within_s=120)
    until(lambda: yard.state(run) in {"finished", "failed", "stopped"}, within_s=480, what="the end of the run")
    [(state, reason)] = yard.sql(
        "SELECT state, reason_code || reason_params::text FROM rollouts_run WHERE key = %s", run
    )
    assert state == "finished", reason
    trained = dict(
        yard.sql(
            "SELECT environment.name, count(*) FROM rollouts_scoredgroup AS grp"
            " JOIN rollouts_runenvironment AS environment ON environment.id = grp.environment_id"
            " JOIN rollouts_run AS run ON run.id = grp.run_id WHERE run.key = %s AND grp.state = 'trained' GROUP BY 1",
            run,
        )
    )
    assert trained.keys() == {"calculator", "chat", "train", "atropos", *outside.PLAYERS}, trained
    for group, told in played.items():
        assert outside.check_trained(yard, run, group, told) < ON_POLICY
        assert any(turn["calls"] for tale in told for turn in tale["turns"]), f"{group}: a tool was called"
    mismatch = yard.metric(run, "mismatch_kl/mean")
    assert len(mismatch) == STEPS
    assert max(map(abs, mismatch)) < 1e-3, "the trainer agrees with the engine on every token that was sampled"


def live_version(yard: Yard, run: str) -> int:
    """Of a run that has not failed."""
    [(state, version)] = yard.sql("SELECT state, live_version FROM rollouts_run WHERE key = %s", run)
    assert state not in {"failed", "stopped"}
    return int(version)
