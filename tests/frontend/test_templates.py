"""What a template must not do without anybody seeing it."""

import re
from pathlib import Path

from django.conf import settings


def test_no_comment_of_a_template_goes_over_a_line() -> None:
    """It would be text on the page, before the doctype: browsers then lay the whole page out as in the last century."""
    templates = [
        path for path in Path(settings.BASE_DIR, "frontend").rglob("*.html") if "node_modules" not in path.parts
    ]
    assert len(templates) > 50
    assert [
        path.name for path in templates if re.search(r"\{#[^\n]*\n", re.sub(r"\{#.*?#\}", "", path.read_text()))
    ] == []
