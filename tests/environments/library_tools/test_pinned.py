"""Keys are for ever: whoever changes a problem or a score raises `version`, and these."""

import hashlib
from typing import Any

import msgspec
import pytest

from environments import registry
from environments.types import Split

PINNED = {
    "code": ("6", "pipeline-2.-7-4.30-9.16-5.9", "93e9b2c85ff408d0"),
    "python": ("1", "days-18-12-4-1990-2013-3", "ab9e1b73b601303c"),
    "search": ("3", "2246d8b65b7c9525", "0cb5a8f0fa024323"),
    "sql": ("3", "ranking-teams-5", "f6cd1f848d5a9964"),
}
"""Environment -> its version, the first key, and a digest of its first problems with all that they know."""


@pytest.mark.parametrize("name", PINNED)
def test_problems_are_those_of_the_version(name: str) -> None:
    environment: Any = registry.load(name)
    problems = [environment.problem(split, index) for split in Split for index in range(40)]
    digest = hashlib.sha256(msgspec.json.encode(problems, order="deterministic")).hexdigest()[:16]
    assert (environment.version, problems[0].key, digest) == PINNED[name]
