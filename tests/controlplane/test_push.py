"""A version is pushed by the hub's own client, to a server that speaks as much of its protocol as an upload needs."""

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rollouts.models import Run
from tests import http_server
from tests.controlplane.command_line import Done, Rollyard
from tests.factories import make_project
from tests.rollouts import story
from tests.rollouts.datasets.test_making import make, played

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]
KEY = "hf_of_the_test"
LARGE = ".parquet"


class Hub(NamedTuple):
    """Where it is, and what was pushed to it."""

    url: str
    made: list[dict[str, Any]]
    files: dict[str, bytes]
    """By path, as the newest commit has them."""
    public: set[str]
    """What everybody sees since before it was pushed to."""


@pytest.fixture
def hub() -> Iterator[Hub]:
    stored: dict[str, bytes] = {}

    class Handler(http_server.Handler):
        def do_GET(self) -> None:
            if self.path == "/api/datasets/me/good":
                self._say({"id": "me/good", "private": "me/good" not in found.public})
            else:
                self.answer(404)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers["Authorization"] != f"Bearer {KEY}":
                self.answer(401, b"{}")
                return
            told = self._told(self.path.partition("?")[0], body)
            self._say(told, 409 if self.path == "/api/repos/create" and found.public else 200)

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            stored[hashlib.sha256(body).hexdigest()] = body
            self.answer(200)

        def _told(self, path: str, body: bytes) -> dict[str, Any]:
            if path == "/api/repos/create":
                found.made.append(json.loads(body))
                return {"url": f"{found.url}/datasets/me/good"}
            if path == "/api/datasets/me/good/preupload/main":
                asked = [file["path"] for file in json.loads(body)["files"]]
                modes = {name: "lfs" if name.endswith(LARGE) else "regular" for name in asked}
                return {"files": [{"path": n, "uploadMode": m, "shouldIgnore": False} for n, m in modes.items()]}
            if path == "/datasets/me/good.git/info/lfs/objects/batch":
                return {"transfer": "basic", "objects": [self._room(each) for each in json.loads(body)["objects"]]}
            if path == "/api/validate-yaml":  # the card at the head of README.md
                return {"errors": [], "warnings": []}
            assert path == "/api/datasets/me/good/commit/main", path
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    found.files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    found.files[value["path"]] = stored[value["oid"]]
            return {"commitUrl": f"{found.url}/datasets/me/good/commit/{'a' * 40}", "commitOid": "a" * 40}

        def _room(self, wanted: dict[str, Any]) -> dict[str, Any]:
            return wanted | {"actions": {"upload": {"href": f"{found.url}/put/{wanted['oid']}"}}}

        def _say(self, told: dict[str, Any], status: int = 200) -> None:
            self.answer(status, json.dumps(told).encode(), {"Content-Type": "application/json"})

    with http_server.serving(Handler) as url:
        found = Hub(url, [], {}, set())
        yield found


@pytest.fixture
def run() -> Run:
    run = story.launch(project=make_project("default"))
    story.submit(run, [played(f"g{number}", [0.25, 1.0]) for number in range(4)], actor="api:t")
    return run


def push(rollyard: Rollyard, hub: str, directory: Path, *, key: str = KEY) -> Done:
    environ = {"HF_ENDPOINT": hub, "HF_TOKEN": key, "HF_HOME": str(directory.parent / "hf")}
    environ |= {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    return rollyard.process("export-sft", "good@1", "-o", directory, "--push", "me/good", **environ)


def test_what_is_pushed_is_private_and_byte_for_byte_the_directory(
    rollyard: Rollyard, run: Run, hub: Hub, tmp_path: Path
) -> None:
    make(run, validation_share=0.5)
    done = push(rollyard, hub.url, tmp_path / "good")
    assert done.returncode == 0, done.stderr
    assert "pushed to me/good" in done.stderr
    [made] = hub.made
    assert (made["organization"], made["name"]) == ("me", "good")
    assert (made["type"], made["visibility"]) == ("dataset", "private")
    written = {file.name: file.read_bytes() for file in (tmp_path / "good").iterdir() if file.name[0] != "."}
    assert hub.files == written
    assert {"train.parquet", "validation.parquet", "README.md"} <= written.keys()


def test_nothing_is_pushed_to_what_is_public_already(rollyard: Rollyard, run: Run, hub: Hub, tmp_path: Path) -> None:
    make(run)
    hub.public.add("me/good")
    done = push(rollyard, hub.url, tmp_path / "good")
    assert done.returncode == 1, done.stderr
    assert "nothing was pushed: me/good is public. Make it private, or name another." in " ".join(done.stderr.split())
    assert not hub.files
    assert (tmp_path / "good" / "train.parquet").exists()


def test_a_key_that_the_hub_refuses_and_a_hub_that_is_away_leave_the_directory_and_say_so(
    rollyard: Rollyard, run: Run, hub: Hub, tmp_path: Path
) -> None:
    make(run)
    for url, key, told in [(hub.url, "hf_of_nobody", "401"), ("http://127.0.0.1:1", KEY, "refused")]:
        done = push(rollyard, url, tmp_path / "good", key=key)
        assert done.returncode == 1, done.stderr
        assert "nothing was pushed: " in done.stderr
        assert told in done.stderr
        assert "hf auth login" in done.stderr
        assert (tmp_path / "good" / "train.parquet").exists()
    assert not hub.files
