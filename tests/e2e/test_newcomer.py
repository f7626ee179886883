"""The second command of a newcomer: in an empty home, `rollyard launch reverse-text-rl` with one flag trains."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.accounts import open_to_others
from tests.e2e.yard import running_yard
from tests.lanes import long_lane

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.vllm]
WARM_UP = ["reverse-text-sft", "max_steps=6", "optimizer.warmup_steps=1", "data.batch_size=16"]
RUN = ["reverse-text-rl", "max_steps=2", "optimizer.warmup_steps=1", "batch.batch_size=16", "evaluation.problems=8"]


@long_lane("the demo makes the same model and trains it, and tests/controlplane/test_models_cli.py knows the flag")
def test_a_launch_in_an_empty_home_makes_its_model_first_and_trains(tmp_path: Path) -> None:
    with running_yard(tmp_path / "up.log") as yard:

        def launch(*words: str) -> "subprocess.CompletedProcess[str]":
            command = [sys.executable, "-m", "controlplane.cli.main", "launch", *words]
            return subprocess.run(
                command,
                env=yard.environ,
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
                stdin=subprocess.DEVNULL,
            )

        refused = launch(*RUN)
        assert refused.returncode == 1
        assert "model.path: there is no model reverse-text-warm here yet: --make-model makes it first" in refused.stderr
        # The same run that the flag would launch, but shorter: the flag finds it under way and waits for it.
        maker = yard.rollyard("launch", *WARM_UP)["run"]
        done = launch(*RUN, "--make-model", "--follow")
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
        assert f"{maker} makes the model reverse-text-warm" in done.stdout
        models = {row["model"]: row["origin"] for row in yard.rollyard("models", "list")}
        assert models == {"tiny-qwen3": "made", "reverse-text-warm": f"{maker}@6"}
        [(run, steps)] = yard.sql("SELECT key, next_step FROM rollouts_run WHERE kind = 'rl' AND state = 'finished'")
        assert steps == 2
        assert yard.rollyard("models", "show", "reverse-text-warm")["runs"] == [run]
        assert list(open_to_others(yard.home.path)) == [], "what a run wrote is its account's alone"
