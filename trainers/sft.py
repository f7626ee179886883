"""Train a model on examples: `torchrun --standalone --nproc-per-node W -m trainers.sft`.

    control plane                                     trainer (W ranks)
    -------------                                     -----------------
    registration: config, epoch, checkpoints  ----->  load model.path or the newest checkpoint
                                                      data.path -> the lines of step n -> render -> pack
                                                      -> cross-entropy, or DPO on pairs -> one optimizer step
    step n acknowledged, metrics              <-----  every k steps with the loss on held-out examples
    checkpoint n + 1 (every k steps)          <-----  checkpoints/step_<n+1>, durable on disk
    policy version max_steps, at the end      <-----  weights/step_<max_steps>, durable on disk

Consumes files, produces one policy version. Waits for nobody. Ends when `max_steps` steps are done, when the control
plane says that the run is over, or, with a checkpoint, when it is told that its time is; all are exit status 0. Which
lines belong to step n is a function of the seed, so a resumed run goes on exactly where it was. Reads ROLLYARD_URL,
ROLLYARD_TOKEN and ROLLYARD_RUN.
"""
# ruff: noqa: E402

import gc

gc.disable()  # What is being loaded is no garbage: a fifth of a start would go into looking. `run_rank` ends this.

import logging
import time
from datetime import UTC, date, datetime
from pathlib import Path

from trainers.data.dataset import open_dataset
from trainers.distributed.mesh import make_world, run_rank
from trainers.learner import Learner
from trainers.link import RunLink
from trainers.metrics.log import MetricLog
from trainers.run_config import RunConfig
from trainers.supervised import make_supervision

_log = logging.getLogger(__name__)


def train() -> None:
    """Train the run that the environment variables name, until the last step or until the run is over."""
    link = RunLink()
    registration = link.register()
    config = RunConfig.stored(registration.config)
    run_dir = Path(registration.run_dir)
    dataset = open_dataset(config, run_dir / "data", run_dir / "datasets")
    log = MetricLog(config.tracking, registration.run, run_dir, is_main=link.is_main)
    world = make_world(config.trainer)
    learner = Learner(config, registration, link, world)
    today = date.fromordinal(link.broadcast(datetime.now(UTC).toordinal()))
    supervision = make_supervision(learner, config, world, today)

    while learner.step < config.max_steps:
        step, begin = learner.step, time.perf_counter()
        metrics = supervision.train_step(dataset.batch(step))
        if dataset.is_validated_after(step):
            metrics |= supervision.validate(dataset.validation_batches())

        metrics |= learner.take_times()
        metrics["time/step"] = time.perf_counter() - begin
        training_s = metrics["time/step"] - metrics.get("time/validation", 0.0)
        metrics["perf/throughput"] = metrics["batch/tokens"] / training_s
        link.ack_step(step, metrics)
        log.write(step, metrics)
        if link.is_main:
            _log.info("step %d: loss %.4f, %.2f s", step, metrics["loss/mean"], metrics["time/step"])
        plan = config.evaluation
        if plan is not None and learner.step < config.max_steps and plan.is_due(learner.step, config.max_steps):
            learner.publish()
        is_last = learner.step == config.max_steps
        is_late = not is_last and link.is_time_over()
        if learner.step % config.trainer.checkpoint_every == 0 or is_last or is_late:
            learner.checkpoint()
        if is_late or link.is_over():
            log.close()
            return
    learner.publish()
    link.finish()
    log.close()


if __name__ == "__main__":
    run_rank(train)
