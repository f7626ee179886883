"""Copies of metrics for other tools: real Weights & Biases (offline) and real TensorBoard files, read back."""

import logging
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trainers.metrics.log import MetricLog
from trainers.run_config import TrackingConfig

METRICS = {"loss/mean": 0.5, "reward/mean": 0.25, "perf/mfu": float("nan")}


def open_log(run_dir: Path, *, is_main: bool = True, **tracking: bool) -> MetricLog:
    return MetricLog(TrackingConfig(**tracking), "run-1", run_dir, is_main=is_main)


def test_tensorboard_has_every_finite_metric_of_every_step(tmp_path: Path) -> None:
    log = open_log(tmp_path, tensorboard=True)
    for step in range(3):
        log.write(step, METRICS | {"loss/mean": float(step)})
    log.close()
    events = EventAccumulator(str(tmp_path / "tracking" / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"loss/mean", "reward/mean"}
    assert [(each.step, each.value) for each in events.Scalars("loss/mean")] == [(0, 0.0), (1, 1.0), (2, 2.0)]


@pytest.mark.slow
def test_wandb_without_a_key_writes_files_to_sync_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    log = open_log(tmp_path, wandb=True)
    log.write(0, METRICS)
    log.write(1, METRICS)
    log.close()
    (file,) = (tmp_path / "tracking" / "wandb").glob("wandb/offline-run-*/run-run-1.wandb")
    written = file.read_bytes()
    assert written.count(b"loss/mean") >= 2
    assert b"perf/mfu" not in written


def test_a_sink_that_cannot_be_opened_is_named_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "tracking").write_text("a file where a directory belongs")
    with caplog.at_level(logging.WARNING):
        log = open_log(tmp_path, tensorboard=True)
        log.write(0, METRICS)
        log.close()
    assert "TensorBoard cannot be used, training goes on without it" in caplog.text


def test_a_sink_that_fails_later_is_named_once_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = open_log(tmp_path, tensorboard=True)
    with caplog.at_level(logging.WARNING):
        for step in ("not a number", "neither"):
            log.write(step, METRICS)  # type: ignore[arg-type]
    assert caplog.text.count("TensorBoard failed") == 1


def test_only_rank_0_writes(tmp_path: Path) -> None:
    log = open_log(tmp_path, is_main=False, tensorboard=True, wandb=True)
    log.write(0, METRICS)
    log.close()
    assert list(tmp_path.iterdir()) == []
