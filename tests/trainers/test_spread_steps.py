"""The program whose steps the tests of a GPU compare, where there is none."""

import json
import sys
from pathlib import Path

import pytest

from tests.trainers import spread_steps


@pytest.mark.usefixtures("world")
def test_ways_to_train_run_one_after_another_and_leave_their_metrics(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = {"exact": {"trainer.device": "cpu"}, "rounded": {"trainer.device": "cpu", "model.dtype": "bfloat16"}}
    monkeypatch.setattr(sys, "argv", ["spread_steps", str(model_dir), str(tmp_path), json.dumps(ways)])
    spread_steps.main()
    exact, rounded = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ways)
    assert len(exact) == len(rounded) == spread_steps.STEPS
    assert exact[0]["loss/mean"] != rounded[0]["loss/mean"]
    assert exact[0]["loss/mean"] == pytest.approx(rounded[0]["loss/mean"], rel=0.01)
