"""Who starts a sandbox: root, whose programs become somebody else, or a plain account, in a user namespace."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from environments.sandbox.owner import choose
from tests.environments.sandbox.programs import copied_for_others, needs_sandbox, told

pytestmark = needs_sandbox

_ONLY_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="ONLY ROOT can become the plain account that this tries")


@_ONLY_ROOT
def test_programs_of_root_are_nobody_else_on_the_machine() -> None:
    print_id = "import json, os; print(json.dumps([os.getuid(), os.geteuid(), *os.getresgid()]))"
    seen = [told(print_id) for _ in range(3)]
    assert len({tuple(each) for each in seen}) == 3
    assert all(number > 1_000 for each in seen for number in each[:2])
    assert choose().uid != choose().uid


@_ONLY_ROOT
@pytest.mark.slow
def test_a_plain_account_gets_the_same_sandbox(open_directory: Path) -> None:
    python = Path("/usr/bin/python3")
    if not python.exists():
        pytest.skip("NO /usr/bin/python3, which a plain account could run: the sandbox of one was not tried")
    packages = copied_for_others(open_directory)
    become = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
    done = subprocess.run(
        [*become, str(python), str(packages / "plain_account.py")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["uid"], seen["we"], seen["given"], seen["kept"]) == (65534, 65534, "g", "k")
    assert seen["caps"].strip("0") == ""
    assert {"root", "home", "var", "run"} & {*seen["root"]} == set()
    assert (seen["bomb"], seen["hog"]) == ("wall", "memory")
    assert seen["most"] <= 17
