"""The licence that people read, and the one that package tools read."""

import hashlib
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
_TEXTS = {"Apache-2.0": "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"}
"""SPDX name -> SHA-256 of the standard text."""


def test_the_licence_file_is_the_standard_text_of_the_licence_that_the_package_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [name] = project["license-files"]
    assert hashlib.sha256((ROOT / name).read_bytes()).hexdigest() == _TEXTS[project["license"]]


def test_the_readme_names_the_licence_and_links_its_text() -> None:
    assert "[Apache-2.0](LICENSE)" in (ROOT / "README.md").read_text(encoding="utf-8")
