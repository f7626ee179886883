"""Which GPU goes to whom."""

import pytest

from workers import accelerators


@pytest.mark.parametrize(
    ("visible", "world_size", "trainer", "servers"),
    [
        ("0,1,2,3", 2, "0,1", ["2", "3", "2"]),
        ("4,5", 1, "4", ["5", "5", "5"]),
        ("0", 1, "0", ["0", "0", "0"]),
        ("0,1", 2, "0,1", ["0", "1", "0"]),
    ],
)
def test_servers_take_the_gpus_behind_the_trainers_and_share_when_there_are_too_few(
    monkeypatch: pytest.MonkeyPatch, visible: str, world_size: int, trainer: str, servers: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert accelerators.trainer_environ(world_size)["CUDA_VISIBLE_DEVICES"] == trainer
    given = [accelerators.server_environ(slot, world_size)["CUDA_VISIBLE_DEVICES"] for slot in range(3)]
    assert given == servers


def test_machine_without_gpus_sets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert list(accelerators.trainer_environ(1)) == ["OMP_NUM_THREADS"]
    assert accelerators.server_environ(0, 1) == {}
