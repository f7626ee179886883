"""Environments of other libraries, unmodified, in one real run: what they sampled is trained, exactly."""

import shutil
from pathlib import Path

import pytest

from tests.accounts import let_others_pass
from tests.e2e.yard import Yard
from trainers.model.tiny import write_tiny_model

pytestmark = [pytest.mark.e2e, pytest.mark.vllm, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
BRIDGED = ROOT / "tests" / "environments" / "bridges"
VERIFIERS, ATROPOS = ROOT / ".venv-verifiers" / "envs" / "verifiers", ROOT / ".venv-atropos"
STEPS = 6


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """A model that knows tools, tasksets and a class of Atropos, where the account of runs may read."""
    let_others_pass(tmp_path)
    write_tiny_model(tmp_path / "model", 0, tools=True)
    shutil.copytree(BRIDGED / "tasksets" / "spelling", tmp_path / "spelling")
    shutil.copy(BRIDGED / "atropos_envs.py", tmp_path)
    for path in tmp_path.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return tmp_path


@pytest.mark.skipif(not VERIFIERS.exists(), reason="NO VERIFIERS: run make verifiers-venv")
@pytest.mark.skipif(not ATROPOS.exists(), reason="NO ATROPOSLIB: run make atropos-venv")
def test_verifiers_and_atropos_train_a_run(yard: Yard, places: Path) -> None:
    spelling, words = str(places / "spelling"), f"{places / 'atropos_envs.py'}:WordsEnv"
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
    run = yard.finish(
        "calculator-rl",
        "--file",
        str(config),
        f"model.path={places / 'model'}",
        f"max_steps={STEPS}",
        "evaluation=null",
        "batch.batch_size=32",
        "sampling.group_size=4",
        "sampling.max_tokens=16",
        "algorithm.filter_zero_advantage=false",
        "algorithm.max_async_level=0",
        "batch.window=0",
    )
    trained = dict(
        yard.sql(
            "SELECT environment.name, count(*) FROM rollouts_scoredgroup AS grp"
            " JOIN rollouts_runenvironment AS environment ON environment.id = grp.environment_id"
            " JOIN rollouts_run AS run ON run.id = grp.run_id WHERE run.key = %s AND grp.state = 'trained' GROUP BY 1",
            run,
        )
    )
    assert trained.keys() == {"calculator", "chat", "train", "atropos"}, trained
    mismatch = yard.metric(run, "mismatch_kl/mean")
    assert len(mismatch) == STEPS
    assert max(map(abs, mismatch)) < 1e-3, "the trainer agrees with the engine on every token that was sampled"
