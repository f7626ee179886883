"""The vocabulary on the wire: names."""

import pytest

from environments import types


@pytest.mark.parametrize(("before", "now"), [("Rollout", types.PlayedRollout), ("ScoredGroup", types.PlayedGroup)])
def test_names_of_before_still_import_and_say_what_they_are_called_now(before: str, now: type) -> None:
    with pytest.warns(DeprecationWarning, match=now.__name__):
        assert getattr(types, before) is now


def test_a_name_that_never_was_is_none() -> None:
    assert not hasattr(types, "Trajectory")
