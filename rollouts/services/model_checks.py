"""Whether a model would load: by its files, then by the code that loads it, a process.

No code that a model brings along is run, so of one with ``trust_remote_code`` only the files are looked at. They may be
hostile all the same: the process gets a copy of the small ones, and sees nothing else of ours.
"""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
from django.conf import settings

from rollouts.errors import Unavailable
from trainers.storage.model_files import NO_TRANSFORMERS, ModelFault, copy_description, fingerprint, read_facts

log = logging.getLogger(__name__)

PROGRAM = ("-m", "trainers.storage.model_check")
_QUIET = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""For who has no memory for threads of every core."""
_HUB_PREFIXES = ("CURL_", "HF_", "HUGGING", "REQUESTS_", "SSL_", "XDG_")
_SIGNALLED = 128
"""Above it are the exit statuses with which a sandbox tells that a signal ended the program."""
_DEADLINE_S = 20.0
PATIENCE_S = 5.0
_HUB_MEMORY_S = 30.0
"""So long a no about a model of the hub holds: it may be cached, or the network be back, soon after."""
_MAX_KNOWN = 256


class _Loads(NamedTuple):
    """A model that loads."""

    directory: Path
    untrainable: str
    """Why it cannot be trained all the same, if so."""


_known: dict[Any, _Loads | ModelFault | None] = {}
"""Answers, by everything they depend on: a form asks after every key that is pressed."""
AT_ONCE = 2
"""Processes at a time: each takes a second of CPU, and whoever may launch can ask for as many as they like."""
places = threading.BoundedSemaphore(AT_ONCE)


def check(source: str, *, trust_remote_code: bool = False, is_trained: bool = False) -> Path | None:
    """Where the files of a model that would load are; None if only the hub has them.

    ``source`` is an absolute directory or the name of a model on the hub. ``is_trained``: nor may its config have kinds
    of layers that we do not train. Takes about a second the first time. Raises
    ModelFault, and Unavailable while too many others are being checked.
    """
    directory = Path(source)
    is_local = directory.is_absolute()
    if is_local:
        read_facts(directory, closed())
        if fault := closed_to_runs(directory):
            raise ModelFault(fault)
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
    if answer is None:
        return None
    if is_trained and answer.untrainable:
        raise ModelFault(answer.untrainable)
    return answer.directory


def closed() -> list[Path]:
    """Where runs write: no link is followed there."""
    return [settings.HOME.path, Path(settings.ROLLYARD_RUNS_DIR)]


def _hub_settings() -> list[str | None]:
    return [os.environ.get(name) for name in ("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_ENDPOINT")]


def _asked_in_turn(source: str) -> _Loads | ModelFault | None:
    if not places.acquire(timeout=PATIENCE_S):
        raise Unavailable("Other models are being checked. Try again in a few seconds.")
    try:
        return _ask(source)
    finally:
        places.release()


def _ask(source: str) -> _Loads | ModelFault | None:
    directory, places_of_runs = Path(source), closed()
    if not directory.is_absolute():
        answer = _told(source, _ask_the_hub(source))
        if answer is None or answer.fault or not answer.directory:
            return ModelFault(answer.fault) if answer and answer.fault else None
        directory, places_of_runs = Path(answer.directory), []  # of the hub's cache most is links
    with TemporaryDirectory(prefix="rollyard-model-") as made:
        copy = Path(made) / "model"
        copy.mkdir()
        try:
            read_facts(directory, places_of_runs)
            copy_description(directory, copy, places_of_runs)
        except ModelFault as fault:
            return fault
        answer = _told(source, confined([sys.executable, *PROGRAM, str(copy)], copy, _DEADLINE_S, _QUIET))
    if answer is None:
        return None
    if answer.fault:
        return ModelFault(answer.fault.replace(str(copy), str(directory)))
    return _Loads(directory, answer.untrainable.replace(str(copy), str(directory)))


class _Told(msgspec.Struct):
    """What the program prints."""

    fault: str
    directory: str
    untrainable: str = ""


def _told(model: str, done: "subprocess.CompletedProcess[str] | None") -> _Told | None:
    """What the program found. None: it cannot tell."""
    if done is None:
        log.warning("%s was not checked; whoever loads it will see", model)
        return None
    if done.returncode == NO_TRANSFORMERS:
        log.info("%s is only checked by its files: transformers is not installed here", model)
        return None
    was_ended = done.returncode < 0 or done.returncode > _SIGNALLED
    if done.returncode:
        log.error("the check of %s broke (%s): %s", model, done.returncode, done.stderr[-1000:])
    try:
        if done.returncode == 0 or was_ended:  # what it may be ended by it says before
            return msgspec.json.decode(done.stdout.splitlines()[-1], type=_Told)
    except (IndexError, msgspec.MsgspecError, RecursionError):
        log.error("the check of %s told nothing: %r", model, done.stdout[-1000:])
    return None


def _ask_the_hub(name: str) -> "subprocess.CompletedProcess[str] | None":
    """Look a name up. It has a network and our account, for its token and cache, and reads nothing of a model."""
    found = {name: value for name, value in os.environ.items() if _is_of_the_hub(name)}
    found["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    try:
        return subprocess.run(
            [sys.executable, *PROGRAM, name],
            env=found,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None


def _is_of_the_hub(name: str) -> bool:
    """Whether a variable says where the hub and its cache are, how to get there, or who asks; or is any program's."""
    return name in {"HOME", "LANG", "LC_ALL", "PATH"} or name.startswith(_HUB_PREFIXES) or name.endswith("_proxy")


Confined = Callable[[Sequence[str], Path, float, Mapping[str, str]], "subprocess.CompletedProcess[str] | None"]


def _nowhere(
    argv: Sequence[str], directory: Path, timeout_s: float, environ: Mapping[str, str]
) -> "subprocess.CompletedProcess[str] | None":
    return None


confined: Confined = _nowhere
"""Runs a program that sees one directory and nothing else of ours; None when it cannot. Sandboxes are above the store,
so the wiring hands this in."""


def _open(path: Path) -> str:
    return ""


closed_to_runs: Callable[[Path], str] = _open
"""Why runs could not read a path, with the fix; "" when they can. Handed in as well."""
