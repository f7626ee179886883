"""Which GPU goes to whom."""

from pathlib import Path

import pytest

from workers.fleet import accelerators


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
    gpus = visible.split(",")
    assert accelerators.trainer_environ(world_size, gpus, beside_servers=True)["CUDA_VISIBLE_DEVICES"] == trainer
    given = [accelerators.server_environ(slot, gpus, world_size)["CUDA_VISIBLE_DEVICES"] for slot in range(3)]
    assert given == servers


@pytest.mark.parametrize(("visible", "found"), [("-1", []), ("1,-1,2", ["1"]), ("GPU-5f2, 3", ["GPU-5f2", "3"])])
def test_a_name_that_is_none_ends_the_list_of_gpus(
    monkeypatch: pytest.MonkeyPatch, visible: str, found: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert accelerators.list_gpus() == found


def test_gpus_are_counted_from_zero_whatever_numbers_their_host_gave_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("nvidia3", "nvidia7", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(accelerators, "DEVICES", tmp_path)
    assert accelerators.list_gpus() == ["0", "1"]


def test_machine_without_gpus_sets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES" not in accelerators.trainer_environ(1, [], beside_servers=True)
    assert accelerators.server_environ(0, [], 1) == {}


def test_a_process_without_a_gpu_sees_none_of_a_machine_that_has_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert accelerators.trainer_environ(1, [], beside_servers=True)["CUDA_VISIBLE_DEVICES"] == ""
    assert accelerators.server_environ(0, [], 1)["CUDA_VISIBLE_DEVICES"] == ""


def test_trainer_beside_servers_on_cpu_leaves_them_half_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr(accelerators, "serves_on_cpu", lambda **_: True)
    assert accelerators.trainer_environ(2, [], beside_servers=True)["OMP_NUM_THREADS"] == "2"
    assert accelerators.trainer_environ(2, [], beside_servers=False)["OMP_NUM_THREADS"] == "4"


@pytest.mark.parametrize("beside_servers", [True, False])
def test_threads_that_wait_give_their_core_away(beside_servers: bool) -> None:
    assert accelerators.trainer_environ(1, [], beside_servers=beside_servers)["OMP_WAIT_POLICY"] == "PASSIVE"
