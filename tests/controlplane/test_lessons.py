"""Lessons where they begin: what was left by one that ended early, and what makes no sense."""

from pathlib import Path
from typing import Any

import pytest

from controlplane.cli import lessons
from rollouts.models import Model
from tests.model_files import write_model


@pytest.mark.django_db
def test_a_model_that_was_made_and_has_no_name_is_taken(tmp_path: Path, settings: Any) -> None:
    settings.ROLLYARD_MODELS_DIR = tmp_path
    left = write_model(tmp_path / "tiny-seed-1")
    assert [lessons.make_tiny(1), lessons.make_tiny(1)] == ["tiny-seed-1"] * 2
    assert [model.source for model in Model.objects.all()] == [str(left)]
