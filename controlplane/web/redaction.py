"""Lines of a log as they may be kept: without what opens something, and with nothing that a terminal obeys.

Django names the address of every request that it refuses, and people put tokens and sign-in links into addresses.
"""

import logging
import re

from environments.visible import visible

_SECRETS = re.compile(r"(/login/link/|/atropos/|\bry_)[\w-]+")


class LineFormatter(logging.Formatter):
    """Cuts sign-in links, Atropos addresses and API tokens off where the secret begins, in tracebacks too."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, and a traceback below it."""
        return _SECRETS.sub(r"\1...", visible(super().format(record)))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - its name in the library
        """What precedes a traceback. A message of several lines is set in, so that none of them passes for another."""
        return super().formatMessage(record).replace("\n", "\n    ")
