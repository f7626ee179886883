"""How much there is of what is random: little whenever the tests run, much in `make test-long`."""

import os

import pytest

IS_LONG = bool(os.environ.get("ROLLYARD_TEST_LONG"))


def amount(usual: int, long: int) -> int:
    """How many kills, examples or rounds this run of the tests has."""
    return long if IS_LONG else usual


def long_lane(why: str) -> pytest.MarkDecorator:
    """Mark what only `make test-long` runs, with what stands for it whenever the tests run."""
    return pytest.mark.skipif(not IS_LONG, reason=f"LONG LANE (make test-long): {why}")


def themes(usual: str) -> list[str]:
    """In which themes a person's way through a page is gone: one whenever the tests run, both in `make test-long`. All
    pages are held against accessibility in both by tests/browser/test_accessible.py."""
    return ["light", "dark"] if IS_LONG else [usual]
