"""Addresses that may be asked, and where keys are found."""

from pathlib import Path

import pytest

from environments.endpoints import address, keys


@pytest.mark.parametrize(
    ("url", "has_key"),
    [
        ("https://api.example.com/v1", True),
        ("https://api.example.com:8443/some/where", True),
        ("http://localhost:8000/v1", True),
        ("http://127.0.0.1:8000/v1", True),
        ("http://[::1]:8000/v1", True),
        ("http://10.1.2.3:8000/v1", False),
    ],
)
def test_tls_this_machine_and_private_networks_without_a_key_are_asked(url: str, has_key: bool) -> None:
    assert address.fault_of(url, has_key=has_key) == ""


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "https://"),
        ("file:///etc/passwd", "https://"),
        ("unix:///run/x.sock", "https://"),
        ("https://", "https://"),
        ("https://[::1", "no URL"),
        ("https://host:port/v1", "no URL"),
        ("https://me:secret@host/v1", "no account"),
        ("https://host/v1?key=1", "no query"),
        ("https://host/v1/chat/completions", "before /chat/completions"),
        ("https://ho st/v1", "visible ASCII"),
        ("https://host/v1\n", "visible ASCII"),
        ("http://api.example.com/v1", "must use https"),
        ("http://8.8.8.8/v1", "must use https"),
        ("http://10.1.2.3:8000/v1", "without a key"),
        ("https://169.254.169.254/latest", "no server's address"),
        ("http://[::ffff:169.254.169.254]/", "no server's address"),
        ("http://0.0.0.0:8000/v1", "no server's address"),
    ],
)
def test_other_addresses_are_refused_with_the_fix(url: str, words: str) -> None:
    assert words in address.fault_of(url, has_key=True)


def test_a_key_is_a_variable_or_a_private_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", " sk-1 \n")
    assert keys.read("env:JUDGE_API_KEY", tmp_path) == "sk-1"
    directory = tmp_path / "secrets"
    directory.mkdir()
    (directory / "judge").write_text("sk-2\n")
    (directory / "judge").chmod(0o600)
    assert keys.read("file:judge", tmp_path) == "sk-2"
    assert keys.read("", tmp_path) == ""


def test_what_is_no_key_is_told_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", "two words")
    directory = tmp_path / "secrets"
    directory.mkdir()
    (directory / "open").write_text("sk-2")
    (directory / "open").chmod(0o644)
    (directory / "link").symlink_to("/etc/hostname")
    for reference in ("env:JUDGE_API_KEY", "env:MISSING_KEY", "file:open", "file:link", "file:none", "file:.."):
        with pytest.raises(keys.KeyMissing) as raised:
            keys.read(reference, tmp_path)
        assert "two words" not in str(raised.value)
        assert "sk-2" not in str(raised.value)


@pytest.mark.parametrize(
    "reference",
    ["sk-123", "env:path", "env:HOME", "file:../secret_key", "file:a/b", "env:ROLLYARD_SECRET_KEY", "file:", "x" * 200],
)
def test_what_is_no_reference_is_refused(reference: str) -> None:
    assert keys.fault_of(reference)


def test_references_are_taken() -> None:
    assert [keys.fault_of(each) for each in ("", "env:OPENAI_API_KEY", "env:HF_TOKEN", "file:judge.prod")] == [""] * 4
