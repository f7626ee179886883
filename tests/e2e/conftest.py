"""One Rollyard, one tiny model and one finished LoRA run for the tests that break none of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.yard import Yard, make_tiny_model, running_yard


@pytest.fixture(scope="package")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random tiny model."""
    return make_tiny_model(tmp_path_factory.mktemp("base") / "model")


@pytest.fixture(scope="package")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    """Its end checks that no process is left."""
    with running_yard(tmp_path_factory.mktemp("yard") / "up.log") as yard:
        yield yard


@pytest.fixture(scope="package")
def adapted(yard: Yard, base: Path) -> str:
    """A finished run of six steps of 32 rollouts, which trained an adapter and left checkpoints of steps 4 and 6."""
    lora = ["model.lora.rank=8", "model.lora.alpha=16", "optimizer.lr=1e-2", "optimizer.warmup_steps=0"]
    kept = ["trainer.checkpoint_every=2", "trainer.keep_checkpoints=1", "trainer.keep_every=4"]
    small = ["batch.batch_size=32", "evaluation=null", "algorithm.max_async_level=0", "max_steps=6"]
    return yard.finish("reverse-text-rl", f"model.path={base}", *small, *lora, *kept)
