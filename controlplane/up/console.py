"""What `rollyard up` says: prefixed lines for people on stderr, events for programs on stdout, everything in a file."""

import itertools
import json
import logging
import re
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import rich.console
import rich.text

_STYLES = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green", "bright_magenta")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Terminal commands, which a log line (it may quote model output) must not give."""
_LOG_FILE_BYTES = 16 * 1024 * 1024


class Console:
    """Where the lines of all processes meet."""

    def __init__(self, log_file: Path, *, quiet: bool, as_json: bool) -> None:
        log_file.parent.mkdir(parents=True, exist_ok=True)
        self._file = logging.Logger("up")
        handler = RotatingFileHandler(log_file, maxBytes=_LOG_FILE_BYTES, backupCount=2)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        self._file.addHandler(handler)
        self._terminal = rich.console.Console(stderr=True, highlight=False, soft_wrap=True)
        self._styles: dict[str, str] = {}
        self._next_style = itertools.cycle(_STYLES)
        self._quiet = quiet
        self._as_json = as_json

    def line(self, process: str, text: str, *, loud: bool = False) -> None:
        """Show one line of a process; a quiet console shows only loud ones (the file gets all)."""
        text = _CONTROL.sub("", text)
        self._file.info("%-10s %s", process, text)
        if loud or not self._quiet:
            self._show(process, text)

    def _show(self, process: str, text: str) -> None:
        if process not in self._styles:
            self._styles[process] = next(self._next_style)
        prefix = (f"{process:<10} ", self._styles[process])
        self._terminal.print(rich.text.Text.assemble(prefix, text))

    def say(self, text: str) -> None:
        """Show a line of the supervisor itself."""
        self.line("rollyard", text)

    def announce(self, text: str) -> None:
        """Put a line a person must see on stdout; programs read it from the event instead.

        It may hold the link that signs in, so it goes to no file.
        """
        if not self._as_json:
            self._print(text)
        elif not self._quiet:
            self._show("rollyard", text)

    def event(self, event: str, **fields: Any) -> None:
        """Put one JSON object on stdout when a program listens."""
        if self._as_json:
            self._print(json.dumps({"event": event, **fields}))

    @staticmethod
    def _print(text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
