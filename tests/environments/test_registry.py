"""Environments by name: a wrong name or argument is told to whoever wrote it, in their words."""

import subprocess
import sys

import pytest

from environments import registry
from environments.errors import InvalidArguments, RegistryError, UnknownEnvironment


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UnknownEnvironment, match=r"'reverse_txt'.*Known: .*reverse_text"):
        registry.load("reverse_txt")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"max_lenght": 3}, "unknown field `max_lenght`.*Arguments it takes: min_length, max_length"),
        ({"max_length": "8"}, r"Expected `int`, got `str` - at `\$.max_length`"),
        ({"words": 0}, r"Expected `int` >= 1 - at `\$.words`"),
        ({"min_length": 9, "max_length": 3}, "min_length 9 is above max_length 3"),
    ],
)
def test_wrong_arguments_are_named(args: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidArguments, match=words):
        registry.load("reverse_text", args)


@pytest.mark.parametrize("place", ["no.such.module:Thing", "environments.types:Nothing", "environments.types:Split"])
def test_an_entry_point_that_cannot_be_loaded_is_a_registry_error(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setitem(registry.places(), "broken", place)
    with pytest.raises(RegistryError, match="broken"):
        registry.load("broken")


def test_listing_names_imports_no_environment() -> None:
    module = "environments.library.reverse_text"
    code = f"import sys; import environments.registry as r; r.names(); print('{module}' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert found.stdout.strip() == "False"
