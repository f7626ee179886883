"""Whether a model would load: by its files, then by the code that loads it, a process.

No code that a model brings along is run, so of one with ``trust_remote_code`` only the files are looked at.
"""

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

from trainers.storage.model_files import NO_TRANSFORMERS, ModelFault, fingerprint, read_facts

log = logging.getLogger(__name__)

_DEADLINE_S = 20.0
_MAX_KNOWN = 256
_known: dict[Any, Path | None] = {}
"""What loaded, by everything the answer depends on: a form asks after every key that is pressed."""


def check(source: str, *, trust_remote_code: bool = False) -> Path | None:
    """Where the files of a model that would load are; None if only the hub has them.

    ``source`` is an absolute directory or the name of a model on the hub. Takes about a second the first time. Raises
    ModelFault.
    """
    directory = Path(source)
    is_local = directory.is_absolute()
    if is_local:
        read_facts(directory)
    if trust_remote_code:
        return directory if is_local else None
    key = (source, fingerprint(directory)) if is_local else None
    if key in _known:
        return _known[key]
    found = _ask(source)
    if key is not None:
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        _known[key] = found
    return found


def _ask(source: str) -> Path | None:
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
        raise ModelFault(answer["fault"])
    return Path(answer["directory"]) if answer["directory"] else None
