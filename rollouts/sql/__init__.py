"""Named queries. One file each; its header says what it does, which rows it locks and which index it relies on."""

from functools import cache
from importlib import resources
from typing import LiteralString


@cache
def load(name: str) -> LiteralString:
    """The text of ``<name>.sql``. Values are always bound as named parameters, never formatted in."""
    return resources.files(__package__).joinpath(f"{name}.sql").read_text()
