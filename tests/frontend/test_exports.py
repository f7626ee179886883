"""Exports on their page: curators ask for them, cancel and fetch them; others look."""

import html
import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from rollouts.models import DatasetVersion, Export, Role, Run
from rollouts.selectors import exports as export_selectors
from rollouts.services.datasets import exports
from tests.factories import make_project, make_user
from tests.rollouts import story
from tests.rollouts.datasets.test_making import make, played

pytestmark = pytest.mark.django_db


@pytest.fixture
def version() -> DatasetVersion:
    run = story.launch()
    story.submit(run, [played(f"g{number}", [0.5, 1.0]) for number in range(3)], actor="api:t")
    return make(run)


def signed_in(role: Role, project: str = "words") -> Client:
    client = Client()
    client.force_login(make_user(f"{role}-of-{project}", role=role, project=make_project(project)))
    return client


def read(client: Client, name: str, *args: Any, status: int = 200) -> str:
    answer = client.get(reverse(name, args=args))
    assert answer.status_code == status
    return html.unescape(answer.content.decode())


def test_a_curator_asks_for_one_and_fetches_its_files(version: DatasetVersion) -> None:
    client = signed_in(Role.CURATOR)
    assert "No exports yet" in read(client, "exports")
    form = {"version": str(version.pk), "form": "sft", "file_format": "jsonl"}
    answer = client.post(reverse("export-make"), form, follow=True)
    assert "good@1 is being exported." in html.unescape(answer.content.decode())
    export = Export.objects.get()
    assert "hx-get" in read(client, "exports")
    exports.write_all("w")
    page = read(client, "exports-live")
    assert "hx-get" not in page
    assert "train.jsonl" in page
    file = client.get(reverse("export-file", args=[export.key, "train.jsonl"]))
    assert file["content-disposition"] == 'attachment; filename="train.jsonl"'
    assert file["content-type"] == "application/octet-stream"
    assert b"".join(file.streaming_content).count(b"\n") == 6  # type: ignore[attr-defined]
    assert client.get(reverse("export-file", args=[export.key, "manifest.json"])).status_code == 200
    assert client.get(reverse("export-file", args=[export.key, "other"])).status_code == 404
    client.post(reverse("export-remove", args=[export.key]))
    assert not exports.directory(export).exists()
    assert "there is nothing to download" in html.unescape(
        client.get(reverse("export-file", args=[export.key, "train.jsonl"]), follow=True).content.decode()
    )


def test_an_older_version_that_is_asked_for_is_the_one_that_is_chosen(
    version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_selectors, "MOST_VERSIONS", 1)
    newer = make(Run.objects.get(), name="newer")
    client = signed_in(Role.CURATOR)
    for asked in (version, newer):
        page = client.get(reverse("exports"), {"version": asked.pk}).content.decode()
        assert re.findall(r'value="(\d+)" selected', page) == [str(asked.pk)]
    for nonsense in ("0", "9" * 19, "9" * 5_000, "²", "x"):
        assert client.get(reverse("exports"), {"version": nonsense}).status_code == 200


def test_one_that_waits_is_cancelled(version: DatasetVersion) -> None:
    client = signed_in(Role.CURATOR)
    client.post(reverse("export-make"), {"version": str(version.pk), "form": "kto", "file_format": "parquet"})
    client.post(reverse("export-cancel", args=[Export.objects.get().key]))
    assert Export.objects.get().state == "cancelled"


def test_a_viewer_looks_and_neither_asks_nor_fetches(version: DatasetVersion) -> None:
    export = exports.request(version, form="sft", user=None, actor="user:cy")
    exports.write_all("w")
    client = signed_in(Role.VIEWER)
    page = read(client, "exports")
    assert "good@1" in page
    assert "train.jsonl" not in page
    form = {"version": str(version.pk), "form": "sft", "file_format": "jsonl"}
    assert client.post(reverse("export-make"), form).status_code == 403
    assert client.get(reverse("export-file", args=[export.key, "train.jsonl"])).status_code == 403
    assert client.post(reverse("export-remove", args=[export.key])).status_code == 403
    stranger = signed_in(Role.CURATOR, "other")
    assert "good@1" not in read(stranger, "exports")
    assert stranger.get(reverse("export-file", args=[export.key, "train.jsonl"])).status_code == 404


@pytest.mark.parametrize("change", [{"form": "dpo"}, {"form": "x"}, {"file_format": "x"}])
def test_what_cannot_be_is_said_at_the_field(version: DatasetVersion, change: dict[str, str]) -> None:
    form = {"version": str(version.pk), "form": "sft", "file_format": "jsonl"} | change
    answer = signed_in(Role.CURATOR).post(reverse("export-make"), form)
    assert answer.status_code == 422
    page = answer.content.decode()
    assert 'class="field-error"' in page
    assert 0 < page.find('class="notice error"') < page.index("<h1>")
