"""Copies of a step's metrics for Weights & Biases and TensorBoard. Rank 0 writes; no failure of either stops training.

The control plane is the record of a run. What is written here is for people who look at many runs in a tool they know,
under the names that the record has.
"""

import logging
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from trainers.run_config import TrackingConfig

_log = logging.getLogger(__name__)

_INIT_TIMEOUT_S = 60.0


class _Sink(Protocol):
    def write(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


class MetricLog:
    """The sinks a run asked for. One that fails is named in the log once and left out from then on."""

    def __init__(self, config: TrackingConfig, run: str, run_dir: Path, *, is_main: bool) -> None:
        directory = run_dir / "tracking"
        self._sinks: dict[str, _Sink] = {}
        if is_main and config.wandb:
            self._open("Weights & Biases", lambda: _WandbSink(config, run, directory / "wandb"))
        if is_main and config.tensorboard:
            self._open("TensorBoard", lambda: _TensorBoardSink(directory / "tensorboard"))

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step. A step that is trained again after a resume is written again."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self._each(lambda sink: sink.write(step, finite))

    def close(self) -> None:
        """Write what is buffered."""
        self._each(lambda sink: sink.close())

    def _open(self, name: str, make: Callable[[], _Sink]) -> None:
        try:
            self._sinks[name] = make()
        except Exception as error:  # noqa: BLE001 - whatever it is, the run is worth more than the copy
            _log.warning("%s cannot be used, training goes on without it: %s", name, error)

    def _each(self, act: Callable[[_Sink], None]) -> None:
        for name, sink in list(self._sinks.items()):
            try:
                act(sink)
            except Exception as error:  # noqa: BLE001
                _log.warning("%s failed, training goes on without it: %s", name, error)
                del self._sinks[name]


class _WandbSink:
    def __init__(self, config: TrackingConfig, run: str, directory: Path) -> None:
        import wandb  # takes a second to import and starts a process

        directory.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=config.wandb_project,
            entity=config.wandb_entity or None,
            id=run,
            name=run,
            dir=str(directory),
            resume="allow",
            mode="online" if os.environ.get("WANDB_API_KEY") else "offline",
            settings=wandb.Settings(init_timeout=_INIT_TIMEOUT_S, silent=True, console="off", x_disable_stats=True),
        )

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        # Not wandb's own step: it refuses to go back, and a resumed run repeats steps.
        self._run.log({**metrics, "step": step})

    def close(self) -> None:
        import wandb

        self._run.finish()
        wandb.teardown()  # waits for its process: finished means handed to it, not written


class _TensorBoardSink:
    def __init__(self, directory: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(directory))  # type: ignore[no-untyped-call]

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)  # type: ignore[no-untyped-call]
        self._writer.flush()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        self._writer.close()  # type: ignore[no-untyped-call]
