"""Files that arrive are complete, under their names, and nowhere else."""

import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers import transfers
from workers.transfers import Arrival, Listed, TransferError


def filled(directory: Path) -> Path:
    (directory / "deep" / "er").mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (directory / "deep" / "er" / "weights.safetensors").write_bytes(bytes(range(256)) * 40)
    (directory / "deep" / "empty").touch()
    return directory


def take(arrival: Arrival, name: str, content: bytes, offset: int = 0) -> None:
    arrival.take(name, len(content), io.BytesIO(content[offset:]).readinto, offset=offset)


def carry(source: Path, target: Path) -> None:
    """As the two ends do it, without the network between them."""
    arrival, found = Arrival(target), transfers.entries(source)
    for entry in found:
        take(arrival, entry.name, (source / entry.name if entry.name else source).read_bytes())
    arrival.finish(found)


def test_directory_arrives_as_it_was(tmp_path: Path) -> None:
    source = filled(tmp_path / "source")
    carry(source, tmp_path / "there" / "target")
    assert transfers.entries(tmp_path / "there" / "target") == transfers.entries(source)
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["target"]


def test_file_alone_and_an_empty_directory_arrive_too(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text("row\n")
    carry(tmp_path / "data.jsonl", tmp_path / "there.jsonl")
    assert (tmp_path / "there.jsonl").read_text() == "row\n"
    (tmp_path / "nothing").mkdir()
    carry(tmp_path / "nothing", tmp_path / "empty")
    assert list((tmp_path / "empty").iterdir()) == []


def test_what_is_there_already_is_replaced_as_a_whole(tmp_path: Path) -> None:
    source, target = filled(tmp_path / "source"), tmp_path / "target"
    target.mkdir()
    (target / "stale").touch()
    carry(source, target)
    assert not (target / "stale").exists()


def test_nothing_has_its_name_before_all_of_it_is_there(tmp_path: Path) -> None:
    source, target = filled(tmp_path / "source"), tmp_path / "target"
    found = transfers.entries(source)
    arrival = Arrival(target)
    take(arrival, "config.json", b"{}")
    with pytest.raises(TransferError, match="did not arrive as it was sent"):
        arrival.finish(found)
    assert not target.exists()
    carry(source, target)
    assert transfers.entries(target) == found


def test_other_bytes_of_the_same_length_are_refused(tmp_path: Path) -> None:
    arrival = Arrival(tmp_path / "target")
    take(arrival, "file", b"abd")
    (tmp_path / "file").write_bytes(b"abc")
    with pytest.raises(TransferError):
        arrival.finish([Listed("file", 3, transfers.digest(tmp_path / "file"))])


def test_file_goes_on_where_it_ended_and_is_looked_at_as_a_whole(tmp_path: Path) -> None:
    content = bytes(range(256)) * 10_000
    (tmp_path / "file").write_bytes(content)
    wanted = [Listed("file", len(content), transfers.digest(tmp_path / "file"))]
    first = Arrival(tmp_path / "target")
    with pytest.raises(TransferError, match="before it was whole"):
        first.take("file", len(content), io.BytesIO(content[:700_000]).readinto)
    second = Arrival(tmp_path / "target")
    assert second.received() == {"file": 700_000}
    take(second, "file", content, 700_000)
    second.finish(wanted)
    assert (tmp_path / "target" / "file").read_bytes() == content


def test_whatever_another_attempt_left_is_gone_after_one_look(tmp_path: Path) -> None:
    source, target = filled(tmp_path / "source"), tmp_path / "target"
    found = transfers.entries(source)
    left = Arrival(target)
    for entry in found:
        take(left, entry.name, b"x" * entry.size)
    again = Arrival(target)
    with pytest.raises(TransferError, match="did not arrive as it was sent"):
        again.finish(found)
    assert all(again.received().get(entry.name, 0) == 0 for entry in found)
    carry(source, target)
    assert transfers.entries(target) == found


@pytest.mark.parametrize("name", ["../outside", "/outside", "deep/../../outside", "a//../../b", "a\0b", "."])
def test_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(TransferError, match="is no name of a file"):
        take(Arrival(tmp_path / "in" / "target"), name, b"x")
    assert list(tmp_path.iterdir()) == []


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30))
def test_no_name_is_written_outside_of_what_arrives(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    place = tmp_path_factory.mktemp("any")
    try:
        take(Arrival(place / "target"), name, b"x")
    except (TransferError, OSError):
        return
    written = [path for path in place.rglob("*") if path.is_file()]
    assert all(path.is_relative_to(place / f"target{transfers.PARTIAL}") for path in written)
    assert len(written) == 1


def test_links_of_a_run_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hush")
    source = filled(tmp_path / "source")
    os.symlink(tmp_path / "secret", source / "config")
    os.symlink(tmp_path, source / "all")
    assert [entry.name for entry in transfers.entries(source)] == [
        "config.json",
        "deep/empty",
        "deep/er/weights.safetensors",
    ]


def test_model_of_a_hubs_cache_is_sent_once_and_by_its_names(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--a--b" / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    blob = tmp_path / "models--a--b" / "blobs" / "abc"
    blob.parent.mkdir()
    blob.write_text("weights")
    os.symlink("../../blobs/abc", snapshot / "model.safetensors")
    found = transfers.entries(tmp_path / "models--a--b", follow_links=True)
    assert [(entry.name, entry.size) for entry in found] == [("snapshots/main/model.safetensors", 7)]


@pytest.mark.parametrize("name", ["config.json", "deep/er/weights.safetensors"])
def test_link_that_is_put_there_after_a_look_leads_nowhere(tmp_path: Path, name: str) -> None:
    source, elsewhere = filled(tmp_path / "source"), filled(tmp_path / "elsewhere")
    listed = transfers.entries(source)
    swapped = source / name.partition("/")[0]
    swapped.rename(tmp_path / "aside")
    swapped.symlink_to(elsewhere / swapped.name)
    with pytest.raises(TransferError, match="link"):
        transfers.opened(source, name)
    entry = next(each for each in listed if each.name == name)
    assert not transfers.has(source, entry), "though what the link leads to has the same bytes"


def test_directory_that_becomes_a_link_is_not_read(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    filled(weights / "step_1")
    filled(tmp_path / "elsewhere")
    (weights / "step_2").symlink_to(tmp_path / "elsewhere")
    assert transfers.entries(weights / "step_2") == []
    with pytest.raises(TransferError):
        transfers.opened(weights / "step_2", "config.json")
