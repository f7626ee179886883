"""The demo, shortened: the way through every real part, and the numbers at its end."""

import json
import os
import subprocess
import sys

import pytest

from controlplane.home import Home
from workers.launchers.processes import with_cwd

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.vllm]
SHORTENED = ["sft.max_steps=12", "max_steps=3", "evaluation.problems=16", "batch.batch_size=32"]


def test_demo_goes_through_both_runs_prints_its_numbers_and_leaves_nothing(temporary_home: Home) -> None:
    environ = {key: value for key, value in os.environ.items() if key not in {"DATABASE_URL", "REDIS_URL"}}
    environ |= {"ROLLYARD_HOME": str(temporary_home.path), "DJANGO_SETTINGS_MODULE": "controlplane.settings"}
    argv = [
        sys.executable,
        "-m",
        "controlplane.cli.demo",
        "--exit-when-done",
        "--json",
        "--seed",
        "7",
        "--port",
        "auto",
    ]
    argv += [word for override in SHORTENED for word in ("--set", override)]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=850, check=False)
    lines = done.stdout.splitlines()
    assert "rollyard login-link" in lines[0], (
        "how to sign in comes first, before anything slow; no link where it is kept"
    )
    result = json.loads(lines[-1])
    assert "error" not in result, done.stdout[-4000:] + done.stderr[-2000:]
    assert (result["steps"], result["rollouts"], result["seed"]) == (3, 96, 7)
    assert list(result["phase_s"]) == ["start", "model", "sft", "rl"]
    assert 0 <= result["max_lag"] <= 8
    assert abs(result["mismatch_kl_on_policy"]) < 1e-3, "trainer and engine disagree about the same weights"
    assert result["generated_tokens_per_s"] > 0
    assert result["trained_tokens_per_s"] > 0
    # Three steps teach nothing: the demo says so with its status.
    assert (done.returncode == 0) == (result["eval_reward_after"] - result["eval_reward_before"] >= 0.1)
    assert with_cwd(temporary_home.postgres_data, "postgres") == set()
