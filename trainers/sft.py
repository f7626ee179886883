"""Train a model on example conversations: `torchrun --standalone --nproc-per-node W -m trainers.sft`.

    control plane                                     trainer (W ranks)
    -------------                                     -----------------
    registration: config, epoch, checkpoints  ----->  load model.path or the newest checkpoint
                                                      data.path, JSONL -> the conversations of step n
                                                      pack -> micro-batches -> cross-entropy -> one optimizer step
    step n acknowledged, metrics              <-----
    checkpoint n + 1 (every k steps)          <-----  checkpoints/step_<n+1>, durable on disk
    policy version max_steps, at the end      <-----  weights/step_<max_steps>, durable on disk

Consumes a file, produces one policy version. Waits for nobody. Ends when `max_steps` steps are done or when the control
plane says that the run is over; both are exit status 0. Reads ROLLYARD_URL, ROLLYARD_TOKEN and ROLLYARD_RUN.
"""

import logging
import time
from pathlib import Path

from trainers.conversations import batch_indices, read_conversations, render
from trainers.learner import Learner
from trainers.link import RunLink
from trainers.metric_log import MetricLog
from trainers.objective import SUPERVISED
from trainers.parallel import make_world, run_rank
from trainers.run_config import RunConfig

_log = logging.getLogger(__name__)


def train() -> None:
    """Train one attempt of the run in the environment, until the last step or until the run is over."""
    link = RunLink()
    registration = link.register()
    config = RunConfig.model_validate(registration.config)
    assert config.data is not None, "the config refuses SFT runs without data"
    conversations = read_conversations(Path(config.data.path))
    log = MetricLog(config.tracking, registration.run, Path(registration.run_dir), is_main=link.is_main)
    learner = Learner(config, registration, link, make_world(config.trainer))

    while learner.step < config.max_steps:
        step, begin = learner.step, time.perf_counter()
        with learner.timed("render"):
            indices = batch_indices(len(conversations), config.data.batch_size, step, config.seed)
            rendered = [render(conversations[i], learner.tokenizer, config.trainer.seq_len) for i in indices]
            sequences = [sequence for sequence in rendered if sequence.trained_T.any()]

        metrics = learner.train_step(sequences, SUPERVISED)

        metrics |= learner.take_times()
        metrics["time/step"] = time.perf_counter() - begin
        metrics["perf/throughput"] = metrics["batch/tokens"] / metrics["time/step"]
        link.ack_step(step, metrics)
        log.write(step, metrics)
        if link.is_main:
            _log.info("step %d: loss %.4f, %.2f s", step, metrics["loss/mean"], metrics["time/step"])
        if learner.step % config.trainer.checkpoint_every == 0 or learner.step == config.max_steps:
            learner.checkpoint()
        if link.is_over():
            return
    learner.publish()
    link.finish()
    log.close()


if __name__ == "__main__":
    run_rank(train)
