"""The layers, in a bare interpreter: what really is in `sys.modules` after an import. The linter sees only text.

And one name for one class.
"""

import ast
import importlib.util
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

DJANGO = {"django", "rest_framework", "celery", "channels", "psycopg"}
TORCH = {"torch", "vllm", "transformers"}
SLOW = TORCH | {"openai", "scipy"}
"""What takes a second or more to load."""
ROOT = Path(__file__).parents[1]
PACKAGES = ("controlplane", "environments", "frontend", "rollouts", "trainers", "workers")


def loaded_by(statement: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has loaded after a statement."""
    code = f"import sys\n{statement}\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    environ = {**os.environ, "DJANGO_SETTINGS_MODULE": "controlplane.settings"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("modules", "forbidden"),
    [
        (["environments.types", "environments.config", "environments.registry"], DJANGO | TORCH | {"trainers"}),
        (["environments.env", "environments.policy", "environments.runner"], DJANGO | TORCH | {"trainers"}),
        (["trainers.config", "trainers.client", "trainers.advantages", "trainers.wire"], DJANGO | TORCH | {"rollouts"}),
        pytest.param(
            ["trainers.rl", "trainers.sft"], DJANGO | {"peft", "vllm", "rollouts", "workers"}, marks=pytest.mark.slow
        ),
    ],
)
def test_package_loads_nothing_that_it_must_not(modules: list[str], forbidden: set[str]) -> None:
    assert loaded_by(f"import {', '.join(modules)}") & forbidden == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("controlplane.asgi", SLOW),
        ("rollouts.doors.native.urls", TORCH | {"workers", "frontend"}),
        ("frontend.urls", TORCH | {"workers"}),
        ("workers.tasks", SLOW),
        ("workers.reconciler", SLOW),
        ("workers.gateway", SLOW),
    ],
)
def test_django_process_loads_nothing_that_it_must_not(module: str, forbidden: set[str]) -> None:
    loaded = loaded_by(f"import django; django.setup(); import {module}")
    # Being an installed app is no import of its code.
    for app in {"workers", "frontend"} & forbidden & loaded:
        submodules = loaded_by_submodules(module, app)
        assert submodules <= {app, f"{app}.apps"}, submodules
    assert loaded & forbidden - {"workers", "frontend"} == set()


def loaded_by_submodules(module: str, package: str) -> set[str]:
    code = f"import django; django.setup(); import {module}, sys\n"
    code += f"print(*[name for name in sys.modules if name.partition('.')[0] == {package!r}])"
    environ = {**os.environ, "DJANGO_SETTINGS_MODULE": "controlplane.settings"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=120)
    return set(done.stdout.split())


def test_supervisor_loads_without_django() -> None:
    """It restarts what breaks, so it must not break with it; and it prints the URL at once."""
    assert loaded_by("import controlplane.up.start") & (TORCH | {"django", "celery", "rollouts"}) == set()


@pytest.mark.parametrize("package", ["controlplane", "environments", "frontend", "rollouts", "trainers", "workers"])
def test_package_does_nothing_on_import(package: str) -> None:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert loaded_by(f"import {package}") & (DJANGO | TORCH) == set()


def test_a_public_class_has_its_name_alone() -> None:
    modules_by_class = defaultdict(list)
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if {"migrations", "management", "node_modules"} & {*path.relative_to(ROOT).parts}:
                continue  # Django gives the names there
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    modules_by_class[node.name].append(str(path.relative_to(ROOT)))
    assert {name: modules for name, modules in modules_by_class.items() if len(modules) > 1} == {}
