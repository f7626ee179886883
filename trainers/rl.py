"""Train a policy on scored rollouts: `torchrun --standalone --nproc-per-node W -m trainers.rl`.

    control plane                                     trainer (W ranks, same batch on each)
    -------------                                     -------------------------------------
    registration: config, epoch, checkpoints  ----->  load model.path or the newest checkpoint
    batch n, formed and stored                ----->  pack -> micro-batches -> objective -> one optimizer step
    policy version n + 1                      <-----  weights/step_<n+1>, durable on disk
    step n acknowledged, metrics              <-----  and, for a few rollouts, what the loss made of each token
    checkpoint n + 1 (every k steps)          <-----  checkpoints/step_<n+1>, durable on disk

Consumes batches, produces policy versions. Waits for the control plane to form batch n; unblocked by enough scored
groups. Ends when `max_steps` steps are done, when the control plane says that the run is over, or, with a checkpoint,
when it is told that its time is; all are exit status 0. Anything else is an error, and the restarted trainer goes on
from the newest checkpoint: it asks for the same batches again and gets the same bytes. Reads ROLLYARD_URL,
ROLLYARD_TOKEN and ROLLYARD_RUN.
"""
# ruff: noqa: E402

import gc

gc.disable()  # What is being loaded is no garbage: a fifth of a start would go into looking. `run_rank` ends this.

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import msgspec

from trainers.distributed.mesh import make_world, run_rank
from trainers.errors import DataError
from trainers.learner import Learner
from trainers.link import RunLink
from trainers.metrics.log import MetricLog
from trainers.metrics.token_values import TokenWatch
from trainers.objective.step import rl_objective
from trainers.packing import TrainingSequence, batch_sequences, count_cut, count_rollouts
from trainers.run_config import RunConfig
from trainers.wire import TrainingBatch

_log = logging.getLogger(__name__)


def train() -> None:
    """Train the run that the environment variables name, until the last step or until the run is over."""
    link = RunLink()
    registration = link.register()
    config = RunConfig.stored(registration.config)
    world = make_world(config.trainer)
    learner = Learner(config, registration, link, world)
    log = MetricLog(config.tracking, registration.run, Path(registration.run_dir), is_main=link.is_main)
    objective = rl_objective(config)
    echo, seq_len = config.algorithm.terms.echo > 0, config.trainer.seq_len
    vocabulary = learner.model.config.get_text_config().vocab_size

    while learner.step < config.max_steps:
        step, begin = learner.step, time.perf_counter()
        with learner.timed("wait_for_batch"):
            fetched = link.next_batch(step)
        if fetched is None:
            if step and link.is_time_over():
                learner.checkpoint()
            log.close()
            return
        with learner.timed("load"):
            batch = msgspec.msgpack.decode(fetched.body, type=TrainingBatch)
            sequences = batch_sequences(batch, seq_len, echo=echo)
            cut = count_cut(batch, seq_len)
        if cut and not sequences:
            fix = "Raise it, or lower sampling.max_tokens or what environments say"
            raise DataError(f"trainer.seq_len: what was sampled for step {step} lies behind {seq_len} tokens. {fix}.")
        _check_vocabulary(sequences, vocabulary)

        watch = TokenWatch(batch, sequences, config.tracking.token_values_share, world)
        metrics = learner.train_step(sequences, objective, batch.temperature, watch)
        learner.publish()
        with learner.timed("token_values"):
            token_values = watch.collect(learner.tokenizer)

        metrics["batch/rollouts"] = float(count_rollouts(sequences))
        metrics["batch/cut"] = float(cut)
        metrics |= learner.take_times()
        metrics["time/step"] = time.perf_counter() - begin
        metrics["perf/throughput"] = metrics["batch/tokens"] / (metrics["time/step"] - metrics["time/wait_for_batch"])
        link.ack_step(step, metrics, fetched.sha256, token_values)
        rewards = [rollout.reward for rollout in batch.rollouts]  # none when all were cut off and masked
        log.write(step, metrics | ({"reward/mean": mean(rewards)} if rewards else {}))
        if link.is_main:
            _log.info("step %d: loss %.4f, %.2f s", step, metrics["loss/mean"], metrics["time/step"])
        if learner.step % config.trainer.checkpoint_every == 0 or learner.step == config.max_steps:
            learner.checkpoint()
    link.finish()
    log.close()


def _check_vocabulary(sequences: Sequence[TrainingSequence], vocabulary: int) -> None:
    """Raise DataError for tokens that the model has no embedding of: the next start would have the same batch."""
    for sequence in sequences:
        if (token := int(sequence.token_ids_T.max())) >= vocabulary:
            raise DataError(
                f"rollout {sequence.index} of group {sequence.group} has the token {token}, and the model knows "
                f"{vocabulary}: its environment has the tokenizer of another model. Give it that of model.path."
            )


if __name__ == "__main__":
    run_rank(train)
