"""The command line, as a person uses it."""

from pathlib import Path

import pytest

from rollouts.services.runs import projects
from tests.controlplane.command_line import Rollyard
from tests.model_files import make_warm


@pytest.fixture
def rollyard(db: None, tmp_path: Path) -> Rollyard:
    """Commands of a person who has set up and made the model of the presets."""
    projects.ensure_admin()
    make_warm(projects.ensure_default())
    return Rollyard(tmp_path)
