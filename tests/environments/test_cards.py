"""Cards: what a class says of itself, for everybody who chooses one."""

import pytest

from environments import registry
from environments.cards import Argument, CodeOwner, card, described


def test_a_docstring_is_a_sentence_and_parts() -> None:
    told = """Sort names.

    Of which there are many.

    Task: sort them,
        line by line.
    Data: made up. Licence: ours.
    Arguments: `x`.
    Reward: 1 for all.
    """
    assert described(told) == (
        "Sort names.",
        {"Task": "sort them, line by line.", "Data": "made up. Licence: ours.", "Reward": "1 for all."},
    )
    assert described("") == ("", {})


@pytest.mark.parametrize("name", [each for each in registry.names() if registry.is_built_in(each)])
def test_every_environment_of_ours_says_what_it_is_and_what_it_takes(name: str) -> None:
    found = card(name)
    assert found.origin is CodeOwner.OURS
    assert found.version
    assert found.summary
    assert list(found.parts) == ["Task", "Data", "Reward", "Checked"]
    assert all(argument.description for argument in found.arguments)
    assert "FIGURES" not in str(found.parts)


def test_an_argument_has_its_default_and_its_meaning() -> None:
    assert Argument("max_length", "8", "Most letters of a word.") in card("reverse_text").arguments


def test_what_somebody_installed_is_not_imported_to_describe_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "places", lambda: {"theirs": "nowhere.at.all:Theirs"})
    assert card("theirs").origin is CodeOwner.INSTALLED
