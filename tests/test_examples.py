"""Every example can be launched as it is, and what its README says of its curve is what its curve says."""

import json
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from trainers.config import resolve

EXAMPLES = Path(__file__).parents[1] / "examples"
NAMES = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())
PRESETS = Path(str(files("trainers"))) / "presets"
TAUGHT = [name for name in NAMES if (EXAMPLES / name / "sft.toml").exists()]
"""Those that teach a tiny model; another says by sizes for a real one how it is done."""
FILES = {"README.md", "sft.toml", "rl.toml", "real-model.toml"}
CURVE = {"curve.json", "curve.svg"}


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*/*.toml")), ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_an_example_is_a_config_without_a_fault(file: Path) -> None:
    config = resolve(files=[file]).config
    assert [each.name for each in config.environments] == [file.parent.name.replace("-", "_")]
    assert config.kind == ("sft" if file.stem == "sft" else "rl")


@pytest.mark.parametrize("name", sorted({*NAMES} - {*TAUGHT}))
def test_one_that_teaches_no_tiny_model_says_so(name: str) -> None:
    assert {path.name for path in (EXAMPLES / name).iterdir()} == {"README.md", "rl.toml"}
    assert f"rollyard launch examples/{name}/rl.toml" in readme(name)
    assert "Not run here" in readme(name)


@pytest.mark.parametrize("name", TAUGHT)
def test_its_warm_up_makes_the_model_that_its_rl_run_starts_from(name: str) -> None:
    sft, rl = (resolve(files=[EXAMPLES / name / f"{kind}.toml"]).config for kind in ("sft", "rl"))
    assert sft.register_as == rl.model.path == f"{name}-warm"
    assert sft.environments == rl.environments


@pytest.mark.parametrize("name", TAUGHT)
def test_its_files_are_presets_unless_they_need_something_made_first(name: str) -> None:
    for kind in ("sft", "rl"):
        file, preset = EXAMPLES / name / f"{kind}.toml", PRESETS / f"{name}-{kind}.toml"
        needs_more = bool(resolve(files=[file]).config.environments[0].python)
        assert preset.exists() != needs_more
        assert needs_more or preset.resolve() == file


@pytest.mark.parametrize("name", TAUGHT)
def test_its_readme_names_its_files_and_the_command_that_gives_its_curve(name: str) -> None:
    found = {path.name for path in (EXAMPLES / name).iterdir()}
    assert found - CURVE == FILES
    assert found & CURVE in (CURVE, set())
    assert [file for file in FILES - {"README.md"} if file not in readme(name)] == []
    assert f"python -m benchmarks.examples {name}" in readme(name)
    assert f"rollyard launch examples/{name}/rl.toml" in readme(name)


@pytest.mark.parametrize("name", TAUGHT)
def test_its_readme_gives_the_figures_of_its_curve(name: str) -> None:
    rows = re.findall(r"^\| (\d+) \| (\.\d\d|1\.00) \| (\.\d\d|1\.00) \|", readme(name), re.MULTILINE)
    assert {seed: (before, after) for seed, before, after in rows} == {
        seed: (two_digits(reward[0]), two_digits(reward[-1])) for seed, reward in figures(name).items()
    }
    assert bool(rows) == ("curve.svg)" in readme(name))


@cache
def readme(name: str) -> str:
    return (EXAMPLES / name / "README.md").read_text()


def figures(name: str) -> dict[str, list[float]]:
    """What was measured of each seed, the oldest version first; none of an example that has not been run."""
    curve = EXAMPLES / name / "curve.json"
    told: dict[str, Any] = json.loads(curve.read_text()) if curve.exists() else {"figure": "reward", "seeds": {}}
    return {seed: list(values[told["figure"]].values()) for seed, values in told["seeds"].items()}


def two_digits(reward: float) -> str:
    return f"{reward:.2f}".removeprefix("0")
