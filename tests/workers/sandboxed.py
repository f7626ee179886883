"""Programs of tests in a sandbox, as those of runs are."""

import json
import sys
import textwrap
from pathlib import Path

import pytest

from workers.launchers import confinement

needs_sandbox = pytest.mark.skipif(
    bool(confinement.complaint()), reason=f"NO SANDBOX, the tests of it are skipped: {confinement.complaint()}"
)


def tried(home: Path, program: str, **made: object) -> dict[str, object]:
    """What a Python program prints as JSON from inside a sandbox."""
    scratch = home / "scratch"
    room = confinement.make(scratch, ours=[home], **made)  # type: ignore[arg-type]
    argv = [sys.executable, "-c", textwrap.dedent(program)]
    done = confinement.run(room, argv, scratch, timeout_s=60, environ={})
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer
