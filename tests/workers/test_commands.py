"""The commands that a run is made of, as they are started where sandboxes are switched off."""

import socket
from pathlib import Path

import psutil
import pytest

from environments.unconfined import VARIABLE
from tests.workers.making import SMALL
from trainers.config import resolve
from workers.fleet import commands
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
        command = commands.trainer(config, run="RUN", directory=tmp_path / "run", url=url, token="t")
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
