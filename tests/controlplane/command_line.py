"""The `rollyard` command line under test: in this process where that is the same, in one of its own where it is not."""

import os
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from controlplane.cli.main import app
from tests import store

ROOT = Path(__file__).parents[2]
Done = subprocess.CompletedProcess[str]


class Rollyard:
    """Commands against the test database; keywords are environment variables."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __call__(self, *words: str | Path, **environ: str) -> Done:
        """Run a command here: it sees what the test has not committed. What it does not expect to raise passes."""
        argv, before = list(map(str, words)), dict(os.environ)
        try:
            done = CliRunner().invoke(app, argv, prog_name="rollyard", env=environ)
        finally:
            os.environ.clear()
            os.environ.update(before)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Done(argv, done.exit_code, done.stdout, done.stderr)

    def process(self, *words: str | Path, **environ: str) -> Done:
        """Run it as a person does; the test has to commit what it is to see."""
        settings = {
            "DATABASE_URL": store.url(),
            "DJANGO_SETTINGS_MODULE": "controlplane.settings",
            "PYTHONPATH": str(ROOT),
        }
        return subprocess.run(
            [sys.executable, "-m", "controlplane.cli.main", *map(str, words)],
            env={**os.environ, **settings, **environ},
            cwd=self._directory,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
