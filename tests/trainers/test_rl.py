"""RL trainers as they are run: torchrun, real ranks, a control plane over HTTP, and kills; and what ranks come to."""

import itertools
import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.lanes import long_lane
from tests.trainers.control_plane import RUN, FakeControlPlane, serving
from tests.trainers.crew import Crew, CrewError
from tests.trainers.support import (
    ROOT,
    await_trainer,
    random_batch,
    rl_config,
    run_trainer,
    start_node,
    start_trainer,
    wandb_file,
)
from trainers.losses.base import LossInputs, LossOutput
from trainers.storage.durable import find_directory, verify_directory
from trainers.wire import TIME_OVER_VARIABLE, TrainingBatch

pytestmark = [pytest.mark.slow]


def make_plane(directory: Path, model: Path, **overrides: Any) -> FakeControlPlane:
    # Adam divides a gradient by its own size: with its usual eps, a rounding error near zero moves a weight as well.
    plane = FakeControlPlane(rl_config(model, optimizer__eps=1e-5, **overrides), directory)
    plane.make_batch = random_batch
    return plane


def weights(plane: FakeControlPlane, version: int) -> dict[str, torch.Tensor]:
    return load_file(Path(plane.versions[version].path) / "model.safetensors")


def run_alone(code: str) -> subprocess.Popen[str]:
    """Start a trainer's only rank, without torchrun."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "LOCAL_WORLD_SIZE": "1"}
    alone |= {"ROLLYARD_URL": "http://127.0.0.1:9", "ROLLYARD_TOKEN": "t", "ROLLYARD_RUN": RUN}
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ | alone, stderr=subprocess.PIPE, text=True
    )


@pytest.fixture(scope="module")
def finished(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> FakeControlPlane:
    """Four steps in one go on one rank; a checkpoint every two."""
    options = {"trainer__checkpoint_every": 2, "trainer__peak_tflops": 1.0}
    plane = make_plane(tmp_path_factory.mktemp("run"), model_dir, max_steps=4, **options)
    with serving(plane) as url:
        assert run_trainer("rl", url) == 0
    return plane


def test_every_step_is_published_acknowledged_and_measured(finished: FakeControlPlane) -> None:
    assert finished.finished
    assert finished.ack_log == [0, 1, 2, 3]
    assert sorted(finished.versions) == [1, 2, 3, 4]
    assert sorted(finished.checkpoints) == [2, 4]
    for step in range(4):
        writes = finished.requests
        assert writes.index(f"GET batches/{step}") < writes.index(f"POST steps/{step}")
    versions = [index for index, request in enumerate(finished.requests) if request == "POST policy-versions"]
    acks = [finished.requests.index(f"POST steps/{step}") for step in range(4)]
    assert all(version < ack for version, ack in zip(versions, acks, strict=True))
    metrics = finished.acks[2].metrics
    assert (metrics["batch/rollouts"], metrics["batch/cut"]) == (8, 0)
    assert {
        "loss/mean", "entropy/mean", "mismatch_kl/mean", "clip_fraction/mean", "optim/grad_norm", "optim/lr",
        "perf/throughput", "time/wait_for_batch", "time/forward_backward", "time/optimizer", "time/publish",
        "time/checkpoint", "time/step", "time/load", "batch/tokens", "perf/peak_memory_gib",
    } <= metrics.keys()  # fmt: skip
    assert 0 < metrics["perf/mfu"] < 1


def test_what_is_announced_is_on_disk_and_loads(finished: FakeControlPlane) -> None:
    for version in finished.versions.values():
        verify_directory(Path(version.path), version.manifest_sha256)
    for checkpoint in finished.checkpoints.values():
        verify_directory(Path(checkpoint.path), checkpoint.manifest_sha256)
    loaded = AutoModelForCausalLM.from_pretrained(finished.versions[4].path)
    assert torch.equal(loaded.model.embed_tokens.weight, weights(finished, 4)["model.embed_tokens.weight"])


@pytest.mark.parametrize(
    "world_size", [2, pytest.param(3, marks=long_lane("three ranks load and share out in tests/trainers/storage"))]
)
def test_more_ranks_train_the_same_weights(
    finished: FakeControlPlane, crew: Crew, model_dir: Path, tmp_path: Path, world_size: int
) -> None:
    plane = make_plane(tmp_path, model_dir, max_steps=4, trainer__checkpoint_every=2)
    with serving(plane) as url:
        crew.train("rl", url, world_size)
    assert_trained_alike(plane, finished)


def test_nodes_that_meet_in_a_file_train_the_same_weights_and_listen_to_nobody_else(
    finished: FakeControlPlane, model_dir: Path, tmp_path: Path
) -> None:
    plane = make_plane(tmp_path, model_dir, max_steps=4, trainer__checkpoint_every=2)
    meeting = tmp_path / "meeting"
    with serving(plane) as url:
        nodes = [start_node("rl", url, node, meeting) for node in (1, 0)]
        try:
            plane.wait_until(lambda: 1 in plane.acks)
            processes = [rank for node in nodes for rank in psutil.Process(node.pid).children(recursive=True)]
            assert len(processes) == 2
            open_sockets = [each for rank in processes for each in rank.net_connections()]
        finally:
            ends = [await_trainer(node) for node in nodes]
    assert ends == [0, 0]
    listening = {each.laddr.ip for each in open_sockets if each.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}, "gloo, on the interface that was named"
    assert not meeting.exists()
    assert_trained_alike(plane, finished)


@long_lane("jobs of several nodes lose a rank in tests/slurm/test_events.py")
def test_when_a_rank_dies_the_nodes_end_and_may_meet_again(model_dir: Path, tmp_path: Path) -> None:
    plane = make_plane(tmp_path, model_dir, max_steps=4)
    plane.make_batch = None  # both wait for the first
    meeting = tmp_path / "meeting"
    with serving(plane) as url:
        nodes = [start_node("rl", url, node, meeting) for node in (0, 1)]
        plane.wait_until(lambda: bool(plane.trainers))
        (victim,) = psutil.Process(nodes[1].pid).children()
        victim.kill()
        assert 0 not in [await_trainer(node) for node in nodes]
    assert not meeting.exists()


def assert_trained_alike(plane: FakeControlPlane, finished: FakeControlPlane) -> None:
    for step in range(4):
        ours, theirs = plane.acks[step].metrics, finished.acks[step].metrics
        for key in ("loss/mean", "entropy/mean", "mismatch_kl/mean", "clip_fraction/mean", "optim/grad_norm"):
            assert ours[key] == pytest.approx(theirs[key], rel=1e-3, abs=1e-6), key
    expected = weights(finished, 4)
    for name, tensor in weights(plane, 4).items():
        torch.testing.assert_close(tensor, expected[name], atol=2e-5, rtol=1e-3)


def test_a_killed_trainer_resumes_to_the_same_curve_and_leaves_no_orphan(
    finished: FakeControlPlane, crew: Crew, model_dir: Path, tmp_path: Path
) -> None:
    plane = make_plane(tmp_path, model_dir, max_steps=4, trainer__checkpoint_every=2)
    with serving(plane) as url:
        with start_trainer("rl", url) as torchrun:
            plane.wait_until(lambda: 2 in plane.acks)
            torchrun.kill()
            rank = plane.trainers[0]["pid"]
            with suppress(psutil.NoSuchProcess):
                psutil.Process(rank).wait(60)
        versions = dict(plane.versions)
        # What takes its place is on another node, which has none of them.
        (tmp_path / "weights").rename(tmp_path / "published")
        crew.train("rl", url)
    written = {path.name for path in (tmp_path / "weights").glob("*")}
    assert written == {f"step_{version}" for version in range(1, 5) if version not in versions}
    for name in written:
        (tmp_path / "weights" / name).rename(tmp_path / "published" / name)
    (tmp_path / "weights").rmdir()
    (tmp_path / "published").rename(tmp_path / "weights")
    assert plane.epoch == 2
    assert plane.ack_log[:3] == [0, 1, 2]
    assert plane.ack_log[3] in (2, 3), "at most the steps since the checkpoint are repeated"
    assert plane.finished
    assert all(plane.versions[version] is known for version, known in versions.items()), "none is announced again"
    for step in range(4):
        assert plane.acks[step].metrics["loss/mean"] == finished.acks[step].metrics["loss/mean"]
    expected = weights(finished, 4)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(plane, 4).items())


def test_a_run_that_is_over_ends_every_rank_quietly_and_keeps_what_it_measured(
    crew: Crew, model_dir: Path, tmp_path: Path
) -> None:
    plane = make_plane(tmp_path, model_dir, max_steps=4, tracking__wandb=True)
    plane.over_at_step = 1
    with serving(plane) as url:
        crew.train("rl", url, 2)
    assert (plane.ack_log, plane.finished) == ([0], False)
    assert b"loss/mean" in wandb_file(tmp_path)


def test_a_trainer_whose_time_is_over_saves_and_another_repeats_nothing(
    crew: Crew, model_dir: Path, tmp_path: Path
) -> None:
    plane, told = make_plane(tmp_path, model_dir, max_steps=4), tmp_path / "time-over"

    def batch(step: int) -> TrainingBatch:
        if step == 2:
            told.touch()  # in the middle of a step, as far as the trainer can tell
        return random_batch(step)

    plane.make_batch = batch
    with serving(plane) as url:
        crew.train("rl", url, 2, **{TIME_OVER_VARIABLE: str(told)})
        assert (plane.ack_log, list(plane.checkpoints), plane.finished) == ([0, 1, 2], [3], False)
        told.unlink()
        crew.train("rl", url, 2, **{TIME_OVER_VARIABLE: str(told)})
    assert (plane.ack_log, plane.finished) == ([0, 1, 2, 3], True)


def test_a_trainer_whose_time_is_over_before_its_first_step_has_nothing_to_save(
    crew: Crew, model_dir: Path, tmp_path: Path
) -> None:
    plane = make_plane(tmp_path, model_dir)
    with serving(plane) as url:
        crew.train("rl", url, **{TIME_OVER_VARIABLE: str(tmp_path)})
    assert (plane.ack_log, plane.checkpoints, plane.finished) == ([], {}, False)


def test_a_trainer_that_was_replaced_stops_with_an_error(crew: Crew, model_dir: Path, tmp_path: Path) -> None:
    plane = make_plane(tmp_path, model_dir, max_steps=4)

    def batch(step: int) -> TrainingBatch:
        if step == 1:
            plane.epoch += 1
        return random_batch(step)

    plane.make_batch = batch
    with serving(plane) as url, pytest.raises(CrewError, match="Superseded"):
        crew.train("rl", url)
    assert (plane.ack_log, plane.finished) == ([0], False)


def test_a_trainer_deletes_nothing_that_is_whole(crew: Crew, model_dir: Path, tmp_path: Path) -> None:
    overrides = {"trainer__checkpoint_every": 2, "trainer__keep_checkpoints": 1, "algorithm__max_async_level": 0}
    plane = make_plane(tmp_path, model_dir, max_steps=4, trainer__keep_weights=1, **overrides)
    with serving(plane) as url:
        crew.train("rl", url)
    assert {path.name for path in (tmp_path / "weights").iterdir()} == {f"step_{step}" for step in (1, 2, 3, 4)}
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"step_2", "step_4"}
    assert find_directory(tmp_path / "checkpoints", 4)


def unmeasured(inputs: LossInputs) -> LossOutput:
    """A loss that trains well, with a metric that is no number."""
    metric = torch.full_like(inputs.advantages_K, torch.nan)
    return LossOutput(-inputs.advantages_K * inputs.trainer_logprobs_K, {"odd": metric})


def test_a_metric_that_is_no_number_is_named_and_nothing_is_published(
    crew: Crew, model_dir: Path, tmp_path: Path
) -> None:
    plane = make_plane(tmp_path, model_dir, algorithm__loss={"type": "custom", "path": f"{__name__}.unmeasured"})
    with serving(plane) as url, pytest.raises(CrewError, match="Diverged: odd/mean is nan"):
        crew.train("rl", url, 2)
    assert (plane.versions, plane.ack_log) == ({}, [])


def test_a_batch_of_which_seq_len_leaves_nothing_ends_the_trainer_by_that_key(
    crew: Crew, model_dir: Path, tmp_path: Path
) -> None:
    plane = make_plane(tmp_path, model_dir, trainer__seq_len=8, sampling__max_tokens=4)  # prompts have ten
    with serving(plane) as url, pytest.raises(CrewError, match=r"trainer\.seq_len: .* step 0 lies behind 8"):
        crew.train("rl", url, 2)
    assert (plane.versions, plane.ack_log) == ({}, [])


def test_a_token_that_the_model_does_not_know_ends_the_trainer_by_the_group_that_has_it(
    crew: Crew, model_dir: Path, tmp_path: Path
) -> None:
    plane = make_plane(tmp_path, model_dir)
    plane.make_batch = partial(random_batch, vocabulary=10**6)
    with serving(plane) as url, pytest.raises(CrewError, match=r"DataError: rollout \d+ of group .* has the token \d+"):
        crew.train("rl", url, 2)
    assert (plane.versions, plane.ack_log) == ({}, [])


def test_a_batch_that_is_masked_whole_is_a_step(crew: Crew, model_dir: Path, tmp_path: Path) -> None:
    plane = make_plane(tmp_path, model_dir, max_steps=1)
    plane.make_batch = partial(random_batch, rollouts=0)
    with serving(plane) as url:
        crew.train("rl", url)
    assert plane.acks[0].metrics["batch/rollouts"] == 0


def test_a_rank_that_crashes_in_native_code_says_where_it_was() -> None:
    with run_alone("import os; from trainers.distributed.mesh import run_rank; run_rank(os.abort)") as rank:
        _, log = rank.communicate(timeout=240)
    assert rank.returncode == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in log
    assert "in run_rank" in log


HANGING = """
import threading
from trainers import link
from trainers.distributed.mesh import run_rank

link.HANG_DUMP_S = 0.1

def hang():
    link.RunLink().broadcast(0)
    threading.Event().wait()

run_rank(hang)
"""


def test_a_rank_that_hangs_says_where_it_is() -> None:
    with run_alone(HANGING) as rank:
        try:
            assert rank.stderr is not None
            dump = itertools.dropwhile(lambda line: not line.startswith("Timeout"), rank.stderr)
            stack = "".join(itertools.islice(dump, 30))
        finally:
            rank.kill()
    assert "in hang" in stack
