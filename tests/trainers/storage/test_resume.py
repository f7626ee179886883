"""Checkpoints under fire: trainers of several ranks are killed while they save, and go on as if nothing had been."""

import itertools
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import torch

from tests.lanes import IS_LONG, amount
from tests.trainers.control_plane import RUN, FakeControlPlane, serving
from tests.trainers.crew import Crew, CrewError
from tests.trainers.support import end_trainer, newest_step, random_batch, rl_config, start_trainer
from trainers.run_config import ModelConfig
from trainers.storage.durable import verify_directory
from trainers.storage.export import export_checkpoint
from trainers.wire import CheckpointIn, CheckpointRef

pytestmark = [pytest.mark.slow]

KILLS = amount(1, 40)
"""Half of them of each kind. The test takes about as many times ten seconds."""
LONGEST_SAVE_S = 0.15
"""A kill comes at a random moment within so long after a save has begun: inside it, or soon after."""
KEPT = 2


def make_plane(directory: Path, model: Path, **overrides: Any) -> FakeControlPlane:
    plane = FakeControlPlane(rl_config(model, **overrides), directory)
    plane.make_batch = random_batch
    return plane


def verify(checkpoint: CheckpointIn) -> None:
    verify_directory(Path(checkpoint.path), checkpoint.manifest_sha256)


def kill_during_a_save(torchrun: psutil.Process, kind: str, checkpoints: Path, chance: random.Random) -> None:
    """SIGKILL torchrun, with which its ranks die, or one of the ranks, with which torchrun ends the other."""
    ranks = [child for child in torchrun.children() if "trainers.rl" in child.cmdline()]
    victim = torchrun if kind == "torchrun" else chance.choice(ranks)
    delay_s = chance.uniform(0, LONGEST_SAVE_S)
    deadline = time.monotonic() + 60
    while not any(checkpoints.glob("*.partial-*")):
        assert time.monotonic() < deadline, "nobody saves"
        time.sleep(0.001)
    time.sleep(delay_s)
    victim.send_signal(signal.SIGKILL)
    psutil.wait_procs([torchrun, *ranks], timeout=60)


@pytest.mark.timeout(1200 + 60 * KILLS)
def test_kills_while_two_ranks_save_lose_no_announced_checkpoint_and_bend_no_curve(
    crew: Crew, model_dir: Path, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance, inside_a_save = random.Random(seed), 0
    plane = make_plane(tmp_path / "run", model_dir, max_steps=100_000, trainer__checkpoint_every=1)
    checkpoints = plane.run_dir / "checkpoints"
    with serving(plane) as url:
        for kind in itertools.islice(itertools.cycle(["torchrun", "rank"]), KILLS):
            enough = len(plane.ack_log) + chance.randint(1, 3)
            with start_trainer("rl", url, world_size=2) as process:
                try:
                    plane.wait_until(lambda enough=enough: len(plane.ack_log) >= enough, timeout_s=240)  # type: ignore[misc]
                    kill_during_a_save(psutil.Process(process.pid), kind, checkpoints, chance)
                finally:
                    print(end_trainer(process))  # shown when the test fails
            inside_a_save += any(".partial-" in path.name for path in checkpoints.iterdir())
            for checkpoint in plane.checkpoints.values():
                verify(checkpoint)
            for path in checkpoints.iterdir():
                assert ".partial-" in path.name or verify_directory(path)
            for step in sorted(plane.checkpoints)[:-KEPT]:
                shutil.rmtree(plane.checkpoints.pop(step).path)
        last = max(plane.checkpoints, default=0) + 2  # every kill may have come before the first was announced
        plane.over_at_step = last
        crew.train("rl", url, ranks=2)
    print(f"{inside_a_save} of {KILLS} kills came inside a save")
    assert not list(checkpoints.glob("*.partial-*"))
    assert newest_step(checkpoints) == last == plane.ack_log[-1] + 1

    calm = make_plane(tmp_path / "calm", model_dir, max_steps=100_000, trainer__checkpoint_every=100_000)
    calm.over_at_step = last
    with serving(calm) as url:
        crew.train("rl", url, ranks=2)
    curve = dict(calm.losses)
    assert [loss for _, loss in plane.losses] == pytest.approx([curve[step] for step, _ in plane.losses], abs=1e-5)


@pytest.mark.parametrize(("before", "after"), [(2, 3), *([(1, 2), (2, 1)] if IS_LONG else [])])
def test_another_number_of_ranks_resumes_to_the_same_next_steps(
    crew: Crew, model_dir: Path, tmp_path: Path, before: int, after: int
) -> None:
    curves = []
    for world_size in (before, after):
        plane = make_plane(tmp_path / str(world_size), model_dir, max_steps=4, trainer__checkpoint_every=2)
        plane.over_at_step = 2
        with serving(plane) as url:
            crew.train("rl", url, before)
            assert sorted(plane.checkpoints) == [2]
            plane.over_at_step = None
            crew.train("rl", url, world_size)
        assert plane.ack_log == [0, 1, 2, 3]
        assert len(list(Path(plane.checkpoints[4].path).glob("*.safetensors"))) == world_size
        curves.append([loss for _, loss in plane.losses])
    assert curves[0] == pytest.approx(curves[1], abs=1e-5)


def test_a_run_none_of_whose_checkpoints_can_be_read_does_not_begin_anew(
    crew: Crew, model_dir: Path, tmp_path: Path
) -> None:
    plane = make_plane(tmp_path, model_dir, max_steps=4, trainer__checkpoint_every=1)
    plane.over_at_step = 2
    with serving(plane) as url:
        crew.train("rl", url)
        assert sorted(plane.checkpoints) == [1, 2]
        for checkpoint in plane.checkpoints.values():
            (Path(checkpoint.path) / "state.json").write_text("{}")
        plane.over_at_step = None
        plane.requests.clear()
        with pytest.raises(CrewError, match=f"checkpoints verify {RUN}"):
            crew.train("rl", url, ranks=2)
    assert plane.requests == ["POST trainer"]


def test_a_fork_with_the_optimizer_goes_on_as_its_source_would_have(
    crew: Crew, model_dir: Path, tmp_path: Path
) -> None:
    source = make_plane(tmp_path / "source", model_dir, max_steps=4, trainer__checkpoint_every=2)
    with serving(source) as url:
        crew.train("rl", url)
    held, start = source.checkpoints[2], tmp_path / "start"
    start.mkdir()
    export_checkpoint(Path(held.path), ModelConfig(path=str(model_dir)), start, torch.float32)

    fork = make_plane(tmp_path / "fork", start, max_steps=2)
    fork.make_batch = lambda step: msgspec.structs.replace(random_batch(step + 2), step=step)
    fork.optimizer_from = CheckpointRef(step=2, path=held.path, manifest_sha256=held.manifest_sha256)
    with serving(fork) as url:
        crew.train("rl", url, ranks=2)
    # The second loss is that of weights which one step with the source's moments has moved.
    assert [loss for _, loss in fork.losses] == pytest.approx([loss for _, loss in source.losses[2:]], abs=1e-5)
    assert fork.acks[1].metrics["optim/grad_norm"] == pytest.approx(source.acks[3].metrics["optim/grad_norm"], rel=1e-3)
