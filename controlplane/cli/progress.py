"""How far a long command is: a bar on a terminal, a line every few seconds elsewhere. Both on stderr."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from environments.visible import visible_line

LINE_EVERY_S = 5.0


class Meter:
    """Takes what is done so far. ``total`` is in the same unit; 0: nobody knows it."""

    def __init__(self, total: float, console: Console, bar: Progress | None) -> None:
        self._total = total
        self._console = console
        self._bar = bar
        self._task = None if bar is None else bar.add_task("", total=total or None, text="")
        self._shown_at = time.monotonic()

    def update(self, done: float, text: str) -> None:
        """Show it, unless something was shown a moment ago."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, text=text)
        elif time.monotonic() - self._shown_at >= LINE_EVERY_S:
            self._shown_at = time.monotonic()
            share = f"{done / self._total:.0%}  " if self._total else ""
            self.say(f"{share}{text}")

    def say(self, text: str) -> None:
        """Print a line of its own, above the bar if there is one."""
        self._console.print(visible_line(text), markup=False)


@contextmanager
def progress(total: float) -> Iterator[Meter]:
    """A meter for as long as the block lasts."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if not console.is_terminal:
        yield Meter(total, console, None)
        return
    text = TextColumn("{task.fields[text]}", markup=False)
    with Progress(BarColumn(), TaskProgressColumn(), text, TimeRemainingColumn(), console=console) as bar:
        yield Meter(total, console, bar)
