"""A file of JSON lines becomes a version of a dataset on the page, or a sentence that names the line."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import expect

from rollouts.models import DatasetVersion
from tests.browser.watched import Watched
from tests.factories import make_project

pytestmark = pytest.mark.browser


def row(number: int) -> str:
    said = [{"role": "user", "content": f"Say {number}"}, {"role": "assistant", "content": str(number)}]
    return json.dumps({"messages": said, "seed": 2**60 + number})


def test_a_file_is_made_a_version_line_by_line(watched: Watched, tmp_path: Path) -> None:
    make_project()
    file = tmp_path / "mine.jsonl"
    file.write_text("\n\n".join(map(row, range(3))) + "\n")
    page = watched.open("/datasets/")
    form = page.locator("form[data-upload]")
    form.get_by_label("File").set_input_files(file)
    form.get_by_label("Dataset").fill("mine")
    form.get_by_role("button", name="Make it of the file").click()
    expect(page.get_by_role("heading", name="mine@1")).to_be_visible()
    version = DatasetVersion.objects.get()
    rows = list(version.members.order_by("position").values_list("row__seed", flat=True))
    assert (version.recipe["file"], rows) == ("mine.jsonl", [2**60, 2**60 + 1, 2**60 + 2])


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([row(0), "", "{"], "Line 3 is no JSON object"),
        ([row(0), "", '{"question": "why"}'], "line 3"),
        ([""], "Choose a file that is not empty"),
        ([row(0), "\udcff"], "no text in UTF-8"),
    ],
)
def test_a_line_that_is_no_example_is_named_and_nothing_is_made(
    watched: Watched, tmp_path: Path, lines: list[str], told: str
) -> None:
    make_project()
    file = tmp_path / "bad.jsonl"
    file.write_text("\n".join(lines), errors="surrogateescape")
    page = watched.open("/datasets/")
    form = page.locator("form[data-upload]")
    form.get_by_label("File").set_input_files(file)
    form.get_by_label("Dataset").fill("mine")
    form.get_by_role("button", name="Make it of the file").click()
    expect(form.get_by_role("alert")).to_contain_text(told)
    expect(form.get_by_role("button", name="Make it of the file")).to_be_enabled()
    watched.faults.clear()  # the refusal that was asked for
    assert not DatasetVersion.objects.exists()
