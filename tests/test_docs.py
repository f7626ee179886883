"""The documents name what is there: links work, the README's map has every file and no other, modules stay short."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("benchmarks", "controlplane", "environments", "frontend", "rollouts", "trainers", "workers")
LONGEST_MODULE_LINES = 350
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
GENERATED = {"node_modules", "static", "__pycache__", "migrations"}


def sources() -> Iterator[Path]:
    """Every Python file of ours below the packages, relative to the root, except empty ones and migrations."""
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            relative = path.relative_to(ROOT)
            if not GENERATED & set(relative.parts) and path.read_text().strip():
                yield relative


def mapped() -> list[str]:
    """The paths of the README's file map; a line without indentation opens a directory."""
    fence = (ROOT / "README.md").read_text().split("## File map")[1].split("```")[1]
    paths, directory = [], ""
    for line in filter(str.strip, fence.splitlines()):
        name = line.split()[0]
        if not line.startswith(" "):
            directory = name if name.endswith("/") else ""
            paths.append(name)
        else:
            paths.append(directory + name)
    return paths


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", document.read_text())
    assert [target for target in targets if not (document.parent / target).exists()] == []


@pytest.mark.parametrize(
    "source", [*DOCUMENTS, *map(ROOT.joinpath, sources())], ids=lambda path: str(path.relative_to(ROOT))
)
def test_what_is_named_in_backticks_is_there(source: Path) -> None:
    text = source.read_text()
    packages = "|".join(PACKAGES)
    paths = re.findall(rf"`((?:{packages}|tests|docs|examples)/[\w./-]*)`", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []
    modules = re.findall(rf"`((?:{packages})(?:\.\w+)+)`", text)
    assert [name for name in modules if not is_module_or_inside_one(name)] == []


def is_module_or_inside_one(dotted: str) -> bool:
    """Whether a prefix of the name is a file, or all of it a package."""
    parts = dotted.split(".")
    files = (ROOT.joinpath(*parts[:length]).with_suffix(".py") for length in range(2, len(parts) + 1))
    return ROOT.joinpath(*parts).is_dir() or any(map(Path.exists, files))


def test_file_map_lists_nothing_that_is_not_there() -> None:
    assert [path for path in mapped() if not list(ROOT.glob(path.rstrip("/")))] == []


def test_file_map_lists_nothing_twice() -> None:
    assert [path for path, times in Counter(mapped()).items() if times > 1] == []


def test_file_map_lists_every_source_file_or_its_directory() -> None:
    paths = mapped()
    tops = {f"{package}/" for package in PACKAGES}
    directories = tuple(path for path in paths if path.endswith("/") and path not in tops)
    missing = [str(path) for path in sources() if str(path) not in paths and not str(path).startswith(directories)]
    assert missing == []


def test_no_module_is_longer_than_a_reader_can_hold() -> None:
    lines = {str(path): len((ROOT / path).read_text().splitlines()) for path in sources()}
    assert {path: count for path, count in lines.items() if count > LONGEST_MODULE_LINES} == {}
