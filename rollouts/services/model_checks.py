"""Whether a model would load: by its files, then by the code that loads it, a process.

No code that a model brings along is run, so of one with ``trust_remote_code`` only the files are looked at.
"""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from django.conf import settings

from rollouts.errors import Unavailable
from trainers.storage.model_files import NO_TRANSFORMERS, ModelFault, fingerprint, read_facts

log = logging.getLogger(__name__)

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
    command = [sys.executable, "-m", "trainers.storage.model_check", source]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_DEADLINE_S, check=False
        )
    except subprocess.TimeoutExpired:
        log.warning("%s was not checked within %.0f s; whoever loads it will see", source, _DEADLINE_S)
        return None
    if done.returncode == NO_TRANSFORMERS:
        log.info("%s is only checked by its files: transformers is not installed here", source)
        return None
    if done.returncode != 0:
        log.error("the check of %s broke: %s", source, done.stderr[-1000:])
        return None
    answer = json.loads(done.stdout.splitlines()[-1])
    if answer["fault"]:
        return ModelFault(answer["fault"])
    return Path(answer["directory"]) if answer["directory"] else None
