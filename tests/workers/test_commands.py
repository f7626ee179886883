"""The commands that a run is made of, as they are started where sandboxes are switched off."""

import json
import os
import runpy
import socket
from pathlib import Path

import psutil
import pytest

from environments.unconfined import VARIABLE
from tests.workers.making import SMALL
from trainers.config import resolve
from workers.fleet import accelerators, commands
from workers.launchers.base import LaunchSpec
from workers.launchers.local import LocalLauncher
from workers.launchers.processes import carriers


@pytest.mark.slow
def test_ranks_without_a_sandbox_listen_on_the_loopback_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    config = resolve(overrides={**SMALL, "trainer.world_size": 2}, environ={}).config
    launcher, token = LocalLauncher(), "a token of this test"
    with socket.create_server(("127.0.0.1", 0)) as control_plane:
        url = f"http://127.0.0.1:{control_plane.getsockname()[1]}"
        command = commands.trainer(config, run="RUN", directory=tmp_path / "run", url=url, token="t", gpus=[])
        handle = launcher.start(LaunchSpec(token, tmp_path / "replica", command.argv, command.environ))
        try:
            control_plane.settimeout(120)
            control_plane.accept()[0].close()  # whoever asks for its run has joined the others
            ranks = [psutil.Process(pid) for pid in carriers(token)]
            listening = {
                each.laddr.ip for rank in ranks for each in rank.net_connections() if each.status == psutil.CONN_LISTEN
            }
            assert sum("trainers.rl" in rank.cmdline() for rank in ranks) >= 2
        finally:
            launcher.stop(handle, 30)
    assert listening == {"127.0.0.1"}, f"gloo's alone: {launcher.logs(handle, 20)}"
    assert not (tmp_path / "replica" / "meeting").exists()


def test_a_job_is_told_of_no_gpu_for_its_node_gives_it_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(accelerators, "serves_on_cpu", lambda **_: False)
    config = resolve(overrides={**SMALL, "launcher.type": "slurm"}, environ={}).config
    trainer = commands.trainer(config, run="RUN", directory=tmp_path / "run", url="http://a", token="t", gpus=[])
    told = [trainer.environ, *(each.environ for each in servers(tmp_path, **{"launcher.type": "slurm"}))]
    assert not [each for each in told if "CUDA_VISIBLE_DEVICES" in each]


def servers(tmp_path: Path, **overrides: object) -> list[commands.Command]:
    """Of a run with two opponents that it starts from, and a judge."""
    policies = [{"name": "rival", "model": "start", "replicas": 2}, {"name": "judge", "model": "/models/judge"}]
    config = resolve(overrides={**SMALL, "policies": policies, **overrides}, environ={}).config
    return [
        commands.server(
            config,
            slot,
            weights=commands.start_weights(config, slot.policy),
            directory=tmp_path / "replicas" / "x",
            socket=tmp_path / "s" / "socket",
            caches=tmp_path / "caches",
            api_key="secret",
            gpus=accelerators.list_gpus(),
        )
        for slot in commands.slots(config)
    ]


def test_all_servers_of_a_run_share_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 24)
    monkeypatch.setattr(accelerators, "serves_on_cpu", lambda **_: True)
    assert [each.environ["OMP_NUM_THREADS"] for each in servers(tmp_path)] == ["3"] * 4
    assert [each.environ["OMP_NUM_THREADS"] for each in servers(tmp_path, policies=[])] == ["12"]


def test_each_server_of_a_run_has_the_next_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    monkeypatch.setattr(accelerators, "serves_on_cpu", lambda **_: False)
    assert [each.environ["CUDA_VISIBLE_DEVICES"] for each in servers(tmp_path)] == ["1", "2", "3", "1"]


def test_a_server_of_several_processes_has_as_many_gpus_and_none_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6")
    monkeypatch.setattr(accelerators, "serves_on_cpu", lambda **_: False)
    two = {"inference.tensor_parallel": 2}
    found = servers(tmp_path, **two)
    assert [each.environ["CUDA_VISIBLE_DEVICES"] for each in found] == ["1,2", "3,4", "5,6", "1,2"]
    assert all(option(each.argv, "--tensor-parallel-size") == "2" for each in found)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert {each.environ["CUDA_VISIBLE_DEVICES"] for each in servers(tmp_path, **two)} == {"0,1"}
    config = resolve(overrides={**SMALL, **two, "inference.pipeline_parallel": 2}, environ={}).config
    assert commands.gpus_wanted(config) == 1 + 4
    assert commands.need(config, "inference").gpus == 4


def test_processes_of_one_server_share_its_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 24)
    monkeypatch.setattr(accelerators, "serves_on_cpu", lambda **_: True)
    (alone,) = servers(tmp_path, policies=[], **{"inference.tensor_parallel": 3})
    assert alone.environ["OMP_NUM_THREADS"] == "4"


def test_further_arguments_are_one_word_each(tmp_path: Path) -> None:
    said: dict[str, object] = {
        "block-size": 32,
        "async-scheduling": False,
        "enforce-eager": True,
        "moe-backend": "-x --y",
    }
    asked = {"inference.arguments": said, "inference.max_num_seqs": 7, "inference.prefix_caching": False}
    (alone,) = servers(tmp_path, policies=[], **asked)
    assert option(alone.argv, "--max-num-seqs") == "7"
    assert alone.argv[-5:] == [
        "--no-enable-prefix-caching",
        *("--block-size=32", "--no-async-scheduling", "--enforce-eager", "--moe-backend=-x --y"),
    ]


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def test_a_frozen_server_has_an_adapter_only_where_the_run_starts_from_one(tmp_path: Path) -> None:
    def with_adapter(**overrides: object) -> list[bool]:
        found = servers(tmp_path, **{"model.lora.rank": 8, **overrides})
        return ["--enable-lora" in each.argv for each in found]

    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    assert with_adapter() == [True, False, False, False]
    assert with_adapter(**{"model.lora.path": str(tmp_path / "adapter")}) == [True, True, True, False]


def test_a_frozen_server_sees_its_model_and_not_what_the_run_trains(tmp_path: Path) -> None:
    own, *_, judge = servers(tmp_path)
    assert commands.weights_of(tmp_path) in own.reads
    assert Path("/models/judge") in judge.reads
    assert not {commands.weights_of(tmp_path), Path("/somewhere/some-model")} & set(judge.reads)


def test_what_a_server_died_of_is_written_beside_what_another_node_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault, of_another = tmp_path / "fault.json", tmp_path / f"fault.json.partial-{os.getpid()}"
    of_another.write_text("half")
    monkeypatch.setenv("ROLLYARD_FAULT_FILE", str(fault))
    runpy.run_path("workers/fleet/vllm_extension/rollyard_faults.py")["blame"]("no head")
    assert json.loads(fault.read_text()) == {"message": "no head"}
    assert of_another.read_text() == "half"
