"""A directory that pretends to hold a model: whoever wrote it learns nothing from it, and holds nobody up."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from django.conf import settings

from rollouts.services import model_checks
from tests.model_files import CONFIG, write_model
from trainers.model.tiny_tools import tool_tokenizer
from trainers.storage import durable
from trainers.storage.model_files import ModelFault, fingerprint, hash_files, read_facts
from workers.launchers import confinement

DEEP = b"[" * 200_000
INDEX = "model.safetensors.index.json"
NAMES = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", INDEX, "code.py"]
LOOK = """
import sys
from pathlib import Path
from trainers.storage.model_files import ModelFault, fingerprint, hash_files, read_facts
for directory in map(Path, sys.argv[1:]):
    for look in (read_facts, hash_files, fingerprint):
        try:
            look(directory)
        except ModelFault as fault:
            print(fault)
"""


def fault_of(directory: Path, look: Callable[..., object] = read_facts, closed: list[Path] | None = None) -> str:
    with pytest.raises(ModelFault) as fault:
        look(directory, closed or [])
    return str(fault.value)


def with_header(directory: Path, header: object, data_bytes: int = 0) -> Path:
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    (directory / "model.safetensors").write_bytes(len(content).to_bytes(8, "little") + content + b"\0" * data_bytes)
    return directory


def test_a_pipe_that_passes_for_a_file_keeps_nobody_waiting(tmp_path: Path) -> None:
    directories = [write_model(tmp_path / name) for name in NAMES]
    for directory, name in zip(directories, NAMES, strict=True):
        (directory / name).unlink(missing_ok=True)
        os.mkfifo(directory / name)
    # In a process of its own: some ways to open a pipe stop every thread of one.
    done = subprocess.run(
        [sys.executable, "-c", LOOK, *map(str, directories)], capture_output=True, text=True, timeout=60, check=True
    )
    for directory, name in zip(directories, NAMES, strict=True):
        assert done.stdout.count(f"{directory / name} cannot be read (is no regular file)") == 3


def test_no_link_is_followed_where_runs_write(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    secret = write_model(tmp_path / "elsewhere") / "config.json"
    for name in NAMES:
        directory = write_model(runs / name)
        (directory / name).unlink(missing_ok=True)
        (directory / name).symlink_to(secret)
        for look in (read_facts, hash_files, fingerprint):
            assert fault_of(directory, look, [runs]) == (
                f"{directory / name} cannot be read (is no regular file): copy it again"
            )
    (runs / "whole").symlink_to(secret.parent)
    assert "is a link" in fault_of(runs / "whole", closed=[runs])
    (tmp_path / "outside").symlink_to(runs)
    assert "is a way around" in fault_of(tmp_path / "outside" / "config.json", closed=[runs])


def test_links_of_people_and_of_the_hubs_cache_lead_to_files(tmp_path: Path) -> None:
    blobs, snapshot = write_model(tmp_path / "blobs"), tmp_path / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(path)
    assert read_facts(snapshot, [tmp_path / "runs"]) == read_facts(blobs)
    assert hash_files(snapshot, [tmp_path / "runs"]) == hash_files(blobs)
    (snapshot / "code.py").symlink_to("/dev/zero")
    assert "code.py cannot be read (is no regular file)" in fault_of(snapshot, hash_files)


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "..", "", "\0", "\ud800"])
def test_an_index_names_files_of_its_directory_and_no_others(tmp_path: Path, name: str) -> None:
    directory = write_model(tmp_path / "m")
    (tmp_path / "secret").write_bytes((directory / "model.safetensors").read_bytes())
    (directory / INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
    assert "lacks 1 of 1 weight files" in fault_of(directory) or "cannot be read" in fault_of(directory)


def test_a_manifest_beside_a_model_names_files_of_its_directory_and_no_others(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "m")
    plain = hash_files(directory)
    size_bytes = (tmp_path / "m" / "config.json").stat().st_size
    forged = [{"name": "../m/config.json", "size_bytes": size_bytes, "sha256": "0"}]
    (directory / "manifest.json").write_text(json.dumps({"files": forged}))
    assert hash_files(directory) == plain
    (directory / "manifest.json").write_bytes(b'{"files": ' + DEEP)
    assert hash_files(directory) == plain


@pytest.mark.parametrize("name", NAMES[:-1])
def test_json_that_is_nested_without_end_is_a_fault_of_its_file(tmp_path: Path, name: str) -> None:
    directory = write_model(tmp_path / "m")
    if name == "model.safetensors":
        with_header(directory, b'{"a": {"x": ' + DEEP)
    else:
        (directory / name).write_bytes(b'{"a": ' + DEEP)
    assert str(directory / name) in fault_of(directory)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", INDEX])
def test_a_file_without_end_is_not_read(tmp_path: Path, name: str) -> None:
    directory = write_model(tmp_path / "m")
    (directory / name).touch()
    os.truncate(directory / name, 2**40)
    assert f"{directory / name} cannot be read (has more than" in fault_of(directory)


@pytest.mark.parametrize(
    "header",
    [
        {"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [-1, -2], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [1] * 65 + [2], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 2**63]}},
        {"a": {"dtype": "letters", "shape": [2], "data_offsets": [0, 8]}},
        {name: {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]} for name in "ab"},
        [],
    ],
    ids=["more than it has", "below zero", "too many axes", "past its end", "no type", "twice", "no object"],
)
def test_a_header_that_lies_is_no_safetensors_file(tmp_path: Path, header: object) -> None:
    directory = with_header(write_model(tmp_path / "m"), header, data_bytes=8)
    assert "is not a whole safetensors file" in fault_of(directory)


def test_every_type_of_numbers_is_counted(tmp_path: Path) -> None:
    sizes = {"F64": 8, "I32": 4, "BF16": 2, "F8_E4M3": 1, "BOOL": 1}
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for dtype, size in sizes.items():
        header[dtype] = {"dtype": dtype, "shape": [3], "data_offsets": [at, at + 3 * size]}
        at += 3 * size
    assert read_facts(with_header(write_model(tmp_path / "m"), header, data_bytes=at)).parameters == 15


def test_what_a_model_calls_itself_can_be_stored_and_seen(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "m", architectures=["a\0b\ud800"])
    assert read_facts(directory).architecture == "a⟨U+0000⟩b⟨U+D800⟩"
    assert read_facts(write_model(tmp_path / "n", architectures={"a": 1})).architecture == CONFIG["model_type"]
    (directory / os.fsdecode(b"\xff.safetensors")).write_bytes(b"")
    assert "⟨U+DCFF⟩.safetensors is not a whole safetensors file" in fault_of(directory)


def test_a_directory_with_more_files_than_a_model_has_is_not_looked_through(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "m")
    for number in range(10_001):
        (directory / f"{number}.py").touch()
    assert "holds more than 10000 files" in fault_of(directory)


def test_a_file_that_takes_too_long_to_hash_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "_LEAST_S", -60.0)
    assert "longer than what of it is on the disk accounts for" in fault_of(write_model(tmp_path / "m"), hash_files)


SEEN = """
import json, os, socket, sys

def reads(path):
    try:
        return bool(open(path).read())
    except OSError:
        return False

fault = {
    "secrets": [path for path in SECRETS if reads(path)],
    "variables": [name for name in os.environ if "SECRET" in name],
    "interfaces": [name for _, name in socket.if_nameindex()],
    "files": sorted(os.listdir(sys.argv[1])) if os.path.isabs(sys.argv[1]) else [],
    "powers": [line.split()[1].strip("0") for line in open("/proc/self/status") if line.startswith("CapEff")],
}
print(json.dumps({"fault": json.dumps(fault), "directory": ""}))
"""


def seen_by_the_program(source: str, monkeypatch: pytest.MonkeyPatch, secrets: list[Path]) -> dict[str, list[str]]:
    """What code sees that takes over the program which loads a model's config and tokenizer."""
    program = f"SECRETS = {[str(path) for path in secrets]!r}\n{SEEN}"
    monkeypatch.setattr(model_checks, "PROGRAM", ("-c", program))
    with pytest.raises(ModelFault) as fault:
        model_checks.check(source)
    found: dict[str, list[str]] = json.loads(str(fault.value))
    return found


@pytest.mark.skipif(bool(confinement.complaint()), reason=f"NO SANDBOX, nothing is tried: {confinement.complaint()}")
def test_what_loads_a_config_sees_a_copy_of_small_files_and_nothing_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLYARD_SECRET_KEY", "the key")
    directory = write_model(tmp_path / "m")
    secrets = [settings.HOME.path / "secret_key", Path("/etc/shadow"), directory / "config.json"]
    secrets[0].touch()
    seen = seen_by_the_program(str(directory), monkeypatch, secrets)
    small = ["chat_template.jinja", "config.json", "tokenizer.json", "tokenizer_config.json"]
    assert seen == {"secrets": [], "variables": [], "interfaces": ["lo"], "files": small, "powers": [""]}


SHORT_OF_MEMORY = """
import resource, sys
from trainers.storage import model_check
model_check._LIMITS[resource.RLIMIT_DATA] = 3 * 2**28
sys.exit(model_check.main())
"""
A_MILLION_TIMES = {
    "type": "TemplateProcessing",
    "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 1_000_000,
    "pair": [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"],
    "special_tokens": {},
}


@pytest.mark.skipif(bool(confinement.complaint()), reason=f"NO SANDBOX, nothing is tried: {confinement.complaint()}")
def test_a_tokenizer_that_would_break_the_drivers_breaks_the_check_and_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It loads, and makes of every word more than there is memory for."""
    monkeypatch.setattr(model_checks, "PROGRAM", ("-c", SHORT_OF_MEMORY))
    directory = write_model(tmp_path / "m")
    tool_tokenizer().save_pretrained(directory)
    assert model_checks.check(str(directory)) == directory
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer | {"post_processor": A_MILLION_TIMES}))
    with pytest.raises(ModelFault, match=f"^{directory} has a config or tokenizer that breaks what loads it"):
        model_checks.check(str(directory))


def test_what_asks_the_hub_gets_no_variable_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLYARD_SECRET_KEY", "the key")
    assert seen_by_the_program("someone/some-model", monkeypatch, [])["variables"] == []


@pytest.mark.parametrize("words", ["", "[" * 50_000, '{"fault": 1}', "no JSON"])
def test_a_program_that_answers_nonsense_refuses_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.setattr(model_checks, "PROGRAM", ("-c", f"print({words!r})"))
    assert model_checks.check(str(write_model(tmp_path / "m"))) is None
