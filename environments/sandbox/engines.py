"""Every engine by its name."""

from collections.abc import Callable

from environments.sandbox.bubblewrap import Bubblewrap
from environments.sandbox.containers import Apptainer, GVisor, Podman
from environments.sandbox.engine import ThreadedEngine
from environments.sandbox.program import SandboxUnavailable
from environments.sandbox.unconfined import Unconfined

_ENGINES: dict[str, Callable[[], ThreadedEngine]] = {
    each.name: each for each in (Bubblewrap, Podman, Apptainer, GVisor, Unconfined)
}


def named(name: str) -> ThreadedEngine:
    """The engine of that name. Raises SandboxUnavailable where it is not installed or may not be used."""
    if name not in _ENGINES:
        raise SandboxUnavailable(f"there is no sandbox {name!r}: choose one of {', '.join(_ENGINES)}")
    return _ENGINES[name]()
