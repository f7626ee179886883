"""`manage.py states_doc`: write docs/states.md from the tables in `rollouts.states`."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any, cast

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db.models import TextChoices

from rollouts.models import Run
from rollouts.models.stateful import Stateful
from rollouts.services.transitions import TRANSITIONS

PATH = Path(settings.BASE_DIR) / "docs" / "states.md"
_HEAD = """\
# States

Everything in the store that has a state, every state with what it means, and every change that is allowed. A change is
one statement that names the states it expects; it leaves an event that says who made it and why. Whoever loses a race
changes nothing and is told so.

This file is written by `python manage.py states_doc` from `rollouts/states.py`. A test fails when it is out of date.
"""


class Command(BaseCommand):
    help = "Write docs/states.md from the state machines, or check that it is current."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--check", action="store_true", help="write nothing; fail when the file is out of date")

    def handle(self, *args: Any, check: bool = False, **options: Any) -> None:
        text = document()
        if not check:
            PATH.write_text(text, encoding="utf-8")
            self.stdout.write(f"wrote {PATH}")
        elif not PATH.exists() or PATH.read_text(encoding="utf-8") != text:
            raise CommandError(f"{PATH} is out of date; run `python manage.py states_doc`")


def document() -> str:
    """The whole file."""
    first: list[type[Stateful]] = [Run]
    others = sorted(TRANSITIONS.keys() - first, key=lambda model: model.__name__)
    return "\n".join([_HEAD, *(_section(model) for model in [*first, *others])])


def _section(model: type[Stateful]) -> str:
    table = TRANSITIONS[model]
    machine = cast("type[TextChoices]", type(next(iter(table))))
    name = str(model._meta.verbose_name)
    edges = [f"    {state} --> {target}" for state in machine for target in _targets(machine, table, state)]
    ends = [f"    {state} --> [*]" for state in machine if not table.get(state)]
    rows = [
        f"| `{state}` | {state.label} | {', '.join(f'`{each}`' for each in _targets(machine, table, state)) or '-'} |"
        for state in machine
    ]
    return "\n".join(
        [
            f"## {name[0].upper()}{name[1:]}",
            "",
            "```mermaid",
            "stateDiagram-v2",
            *edges,
            *ends,
            "```",
            "",
            "| state | what it means | goes to |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def _targets(machine: type[TextChoices], table: dict[str, frozenset[str]], state: str) -> list[str]:
    """Where a state leads, in the order in which the machine names its states."""
    return [target for target in machine if target in table.get(state, frozenset())]
