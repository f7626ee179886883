"""What `rollyard up` says: prefixed lines for people on stderr, events for programs on stdout, everything in a file."""

import itertools
import json
import logging
import re
import sys
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import rich.console
import rich.text

from environments.visible import visible

_STYLES = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green", "bright_magenta")
_COMMAND = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
"""Colours and titles of terminals, which programs put into their lines."""
_LOG_FILE_BYTES = 16 * 1024 * 1024


class PatientFile(RotatingFileHandler):
    """A log file that drops what it cannot write, as with a full disk, and says how much when it can again."""

    _dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, after a note about those that were dropped."""
        before = self._dropped
        if before:
            lines = "1 line" if before == 1 else f"{before} lines"
            note = f"{lines} could not be written: was the disk of {self.baseFilename} full?"
            super().emit(logging.makeLogRecord({"msg": "%-10s %s", "args": ("rollyard", note)}))
        if self._dropped > before:  # still so
            return
        self._dropped = 0
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Drop the line, and what of it lies in the buffer."""
        self._dropped += 1
        stream, self.stream = self.stream, None  # opened anew for the next line
        with suppress(OSError):
            if stream is not None:
                stream.close()


class Console:
    """Where the lines of all processes meet."""

    def __init__(self, log_file: Path, *, quiet: bool, as_json: bool) -> None:
        log_file.parent.mkdir(parents=True, exist_ok=True)
        self._file = logging.Logger("up")
        handler = PatientFile(log_file, maxBytes=_LOG_FILE_BYTES, backupCount=2)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        self._file.addHandler(handler)
        self._terminal = rich.console.Console(stderr=True, highlight=False, soft_wrap=True)
        self._styles: dict[str, str] = {}
        self._next_style = itertools.cycle(_STYLES)
        self._quiet = quiet
        self._as_json = as_json

    def line(self, process: str, text: str, *, loud: bool = False) -> None:
        """Show one line of a process; a quiet console shows only loud ones (the file gets all)."""
        text = visible(_COMMAND.sub("", text))
        self._file.info("%-10s %s", process, text)
        if loud or not self._quiet:
            self._show(process, text)

    def _show(self, process: str, text: str) -> None:
        if process not in self._styles:
            self._styles[process] = next(self._next_style)
        prefix = (f"{process:<10} ", self._styles[process])
        with suppress(OSError):  # the file that it is directed to has no room
            self._terminal.print(rich.text.Text.assemble(prefix, text))

    def say(self, text: str) -> None:
        """Show a line of the supervisor itself."""
        self.line("rollyard", text)

    def announce(self, text: str, *, elsewhere: str) -> None:
        """Put a line a person must see on stdout; programs read it from the event instead.

        It may hold the link that signs in, so it goes to no file: not to one of ours, and where what we say is kept, as
        by systemd, `elsewhere` is said in its place.
        """
        if not self._as_json:
            self._print(text if sys.stdout.isatty() else elsewhere)
        elif not self._quiet:
            self._show("rollyard", text if sys.stderr.isatty() else elsewhere)

    def event(self, event: str, **fields: Any) -> None:
        """Put one JSON object on stdout when a program listens."""
        if self._as_json:
            self._print(json.dumps({"event": event, **fields}))

    @staticmethod
    def _print(text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
