"""Settings under which nothing starts: each is named with its fix, before a port answers."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from controlplane.safety import Installation, refusals

GOOD = Installation(
    debug=False,
    hosts=["localhost", "rollyard.example"],
    secret_key="".join(map(chr, range(48, 98))),
    https=True,
    plain_http=False,
    home=Path("/nowhere"),
    confined=True,
)


def test_what_is_safe_is_not_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    here = ["localhost", "127.0.0.1"]
    for safe in (GOOD, GOOD._replace(debug=True, https=False, hosts=here), GOOD._replace(home=tmp_path)):
        assert refusals(safe) == []
    assert refusals(GOOD._replace(https=False, plain_http=True)) == []


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"debug": True}, "ROLLYARD_DEBUG"),
        ({"hosts": ["*"]}, "ROLLYARD_ALLOWED_HOSTS"),
        ({"secret_key": "abc"}, "ROLLYARD_SECRET_KEY"),
        ({"secret_key": "x" * 50}, "ROLLYARD_SECRET_KEY"),
        ({"https": False}, "plain HTTP"),
    ],
)
def test_what_is_not_is_named_with_its_fix(setting: dict[str, Any], named: str) -> None:
    [refusal] = refusals(GOOD._replace(**setting))
    assert named in refusal.what
    assert refusal.fix


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o703])
def test_a_home_that_others_look_into_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    [refusal] = refusals(GOOD._replace(home=tmp_path))
    assert f"chmod -R go-rwx {tmp_path}" in refusal.fix


@pytest.mark.skipif(os.geteuid() != 0, reason="ONLY ROOT is refused to run without sandboxes")
def test_root_is_refused_without_sandboxes() -> None:
    [refusal] = refusals(GOOD._replace(confined=False))
    assert "ROLLYARD_UNSAFE_NO_SANDBOX" in refusal.what


@pytest.mark.parametrize(
    "command",
    [[sys.executable, "-c", "import controlplane.asgi"], [sys.executable, "-m", "controlplane.cli.main", "up"]],
    ids=["asgi", "up"],
)
def test_an_unsafe_start_is_refused_with_every_reason(command: list[str], tmp_path: Path) -> None:
    environ = {key: value for key, value in os.environ.items() if key not in {"DATABASE_URL", "REDIS_URL"}}
    environ |= {"DJANGO_SETTINGS_MODULE": "controlplane.settings", "ROLLYARD_HOME": str(tmp_path / "home")}
    environ |= {"ROLLYARD_SECRET_KEY": "abc", "ROLLYARD_DEBUG": "1", "ROLLYARD_ALLOWED_HOSTS": "*"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    for name in ("ROLLYARD_SECRET_KEY", "ROLLYARD_DEBUG", "ROLLYARD_ALLOWED_HOSTS"):
        assert name in done.stderr
    assert not (tmp_path / "home" / "postgres").exists()
