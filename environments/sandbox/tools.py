"""What environments import to run programs, such as code that the policy wrote, where they can do no harm.

    done = await run(["python3", "main.py"], files={"main.py": code}, limits=SandboxLimits(wall_s=5))

See `docs/sandbox.md`.
"""

import os
from collections.abc import Mapping, Sequence

from environments import unconfined
from environments.sandbox.bubblewrap import Bubblewrap
from environments.sandbox.call import SandboxCall, SandboxLimits, SandboxResult
from environments.sandbox.engine import Engine
from environments.sandbox.engines import named
from environments.sandbox.program import SandboxUnavailable
from environments.sandbox.unconfined import Unconfined

__all__ = ["Engine", "SandboxLimits", "SandboxResult", "SandboxUnavailable", "default", "named", "run", "showing"]
__all__ += ["use"]

VARIABLE = "ROLLYARD_TOOL_SANDBOX"
"""Name of the engine that runs programs of environments: bubblewrap unless it says something else."""

_engine: Engine | None = None


async def run(
    argv: Sequence[str],
    files: Mapping[str, bytes | str] | None = None,
    limits: SandboxLimits | None = None,
    stdin: bytes | str = b"",
    returns: Sequence[str] = (),
) -> SandboxResult:
    """Run a program in a sandbox of its own and return what came of it, however it ended.

    `files`: name in its directory -> content; `returns`: names of files that are wanted back. Cancelling kills it.
    Raises ValueError for what cannot be run, SandboxUnavailable where there is no sandbox; its message names the fix.
    """
    call = SandboxCall(
        argv=list(argv),
        files={name: _encoded(content) for name, content in (files or {}).items()},
        stdin=_encoded(stdin),
        returns=list(returns),
        limits=limits or SandboxLimits(),
    )
    return await default().run(call)


def use(engine: Engine | None) -> None:
    """Have this engine run programs in this process from now on; None: the one that the environment's variables say."""
    global _engine
    _engine = engine


def default() -> Engine:
    """The engine that runs programs in this process. Raises SandboxUnavailable."""
    global _engine
    if _engine is None:
        _engine = named("unconfined" if unconfined.is_unconfined() else os.environ.get(VARIABLE) or "bubblewrap")
    return _engine


def showing(python: str) -> Engine:
    """The engine for an environment beside this process, with the interpreter that it has; "": ours.

    An engine that has no way to show that runs nothing: programs would find another Python. Raises SandboxUnavailable.
    """
    engine = default()
    if not python or isinstance(engine, Unconfined):
        return engine
    if isinstance(engine, Bubblewrap):
        return Bubblewrap(python)
    return _Refusing(
        f"bubblewrap alone shows programs the Python of {python}, and this installation runs them in another sandbox: "
        f"unset {VARIABLE}, or install what the environment needs beside Rollyard, without `python`"
    )


class _Refusing:
    def __init__(self, reason: str) -> None:
        self._reason = reason

    async def run(self, call: SandboxCall) -> SandboxResult:
        raise SandboxUnavailable(self._reason)


def _encoded(text: bytes | str) -> bytes:
    return text.encode() if isinstance(text, str) else bytes(text)
