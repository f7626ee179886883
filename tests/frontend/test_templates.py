"""What a template must not do without anybody seeing it."""

import re
from pathlib import Path

from django.conf import settings


def templates() -> list[Path]:
    found = [path for path in Path(settings.BASE_DIR, "frontend").rglob("*.html") if "node_modules" not in path.parts]
    assert len(found) > 50
    return found


def test_no_comment_of_a_template_goes_over_a_line() -> None:
    """It would be text on the page, before the doctype: browsers then lay the whole page out as in the last century."""
    assert [
        path.name for path in templates() if re.search(r"\{#[^\n]*\n", re.sub(r"\{#.*?#\}", "", path.read_text()))
    ] == []


def test_everything_that_keys_walk_over_has_an_id_to_be_found_by() -> None:
    tags = [tag for path in templates() for tag in re.findall(r"<[^>]*data-keyboard-item[^>]*>", path.read_text())]
    assert len(tags) > 10
    assert [tag for tag in tags if not re.search(r'\sid="', tag)] == []


def test_what_shows_hidden_characters_is_markup_and_treated_so() -> None:
    """Cut behind `visible`, a tag may stay open and swallow what follows; in an attribute it ends that, and a title
    shows it as text. Of both the middleware takes care (`controlplane/web/visible.py`)."""
    wrong = r'\|visible\|(?:truncate|slice|cut|wordwrap|upper|lower)|="[^"<>]*\|visible|block title[^\n]*\|visible'
    assert [f"{path.name}: {found}" for path in templates() for found in re.findall(wrong, path.read_text())] == []
