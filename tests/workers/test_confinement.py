"""What is shown to code of a run, and what is opened to its account for it."""

import ctypes
import json
import os
import py_compile
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from tests.workers.sandboxed import needs_sandbox, tried
from workers.launchers import confinement, sandbox

pytestmark = needs_sandbox

_EXCHANGE = 2
"""RENAME_EXCHANGE of renameat2."""


def test_what_a_run_may_read_it_cannot_write_and_only_that_of_the_home_is_opened(home: Path, tmp_path: Path) -> None:
    model = home / "models" / "mine"
    model.mkdir(parents=True, mode=0o700)
    (model / "config.json").write_text("{}")
    (model / "config.json").chmod(0o600)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "notes").write_text("not a run's")
    (elsewhere / "notes").chmod(0o600)
    seen = tried(
        home,
        f"""
        import json, os
        try:
            open({str(model / "new")!r}, "w")
            wrote = True
        except OSError:
            wrote = False
        print(json.dumps({{"read": open({str(model / "config.json")!r}).read(), "wrote": wrote}}))
        """,
        reads=[model],
    )
    assert seen == {"read": "{}", "wrote": False}
    if os.geteuid() == 0:
        with pytest.raises(sandbox.SandboxUnavailable, match=r"cannot read .*: chmod -R o\+rX"):
            confinement.make(home / "scratch", ours=[home], reads=[elsewhere])
        assert f"cannot read {elsewhere}" in confinement.closed_to_runs(elsewhere, [home])
        assert confinement.closed_to_runs(model, [home]) == ""
    assert stat.S_IMODE((elsewhere / "notes").stat().st_mode) == 0o600


def test_nothing_that_holds_the_home_is_shown_to_a_run(home: Path, tmp_path: Path) -> None:
    with pytest.raises(sandbox.SandboxUnavailable, match="holds the home"):
        confinement.make(home / "scratch", ours=[home], reads=[tmp_path])


@pytest.mark.skipif(os.geteuid() != 0, reason="ONLY ROOT can make a link that is somebody else's")
def test_what_became_a_link_to_something_hidden_since_it_was_looked_at_is_not_shown(
    home: Path, open_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, named = open_directory / ".ssh" / "id_ed25519", open_directory / "data" / "rows.csv"
    for file in (secret, named):
        file.parent.mkdir()
        file.parent.chmod(0o755)
        file.write_text("text\n")
        file.chmod(0o644)
    assert confinement.make(home / "scratch", ours=[home], reads=[named]) is not None
    named.unlink()
    named.symlink_to(secret)
    behind = named.with_name("directory")
    behind.symlink_to(secret.parent)
    for way in (named, behind, behind / secret.name):
        # Whose links are root's or ours somebody has allowed, such as models in a store.
        assert confinement.make(home / "scratch", ours=[home], reads=[way]) is not None
        os.chown(named if way == named else behind, 54321, 54321, follow_symlinks=False)
        with pytest.raises(sandbox.SandboxUnavailable, match=r"is a link, or behind one.*lies in \.ssh"):
            confinement.make(home / "scratch", ours=[home], reads=[way])
        os.chown(named if way == named else behind, 0, 0, follow_symlinks=False)
    # Where the path says it, an administrator allowed it, as what the variable names.
    assert confinement.make(home / "scratch", ours=[home], reads=[secret]) is not None
    monkeypatch.setenv(confinement.READABLE_VARIABLE, str(secret.parent))
    assert confinement.make(home / "scratch", ours=[home], reads=[named]) is not None


@pytest.mark.parametrize("shape", ["a link", "below a link", "a link from outside", "relative", "dots"])
def test_no_way_that_somebody_can_turn_elsewhere_is_gone(home: Path, tmp_path: Path, shape: str) -> None:
    secret, run = home / "secret_key", home / "runs" / "one"
    secret.write_text("secret")
    secret.chmod(0o600)
    run.mkdir(parents=True)
    (run / "step_1").symlink_to(secret)
    (run / "up").symlink_to(home)
    (tmp_path / "outside").symlink_to(secret)
    named = {
        "a link": run / "step_1",
        "below a link": run / "up" / "secret_key",
        "a link from outside": tmp_path / "outside",
        "relative": Path(os.path.relpath(secret)),
        "dots": run / ".." / ".." / "secret_key",
    }[shape]
    assert named.exists()
    with pytest.raises(sandbox.SandboxUnavailable, match=r"is a link|is a way around|is relative"):
        confinement.make(home / "scratch", ours=[home], reads=[named])
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600, "what is refused is left as it was"


def test_what_is_exchanged_while_a_sandbox_is_made_opens_nothing(home: Path) -> None:
    secret, run = home / "secret_key", home / "runs" / "one"
    named, other = run / "step_1", run / "other"
    named.mkdir(parents=True)
    other.symlink_to(secret)
    over, seen = Event(), list[str]()

    def exchange() -> None:
        libc = ctypes.CDLL(None)
        while not over.is_set():
            libc.renameat2(-1, os.fsencode(named), -1, os.fsencode(other), _EXCHANGE)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(exchange)
        try:
            while len(seen) < 60 or ("directory" not in seen and len(seen) < 1000):
                seen.append(look_at(home, named))
        finally:
            over.set()
    assert "directory" in seen
    assert set(seen) <= {"directory", "refused"}
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def look_at(home: Path, named: Path) -> str:
    """What is found at a path that a run may read."""
    scratch = home / "scratch"
    try:
        room = confinement.make(scratch, ours=[home], reads=[named])
        argv = ["/bin/sh", "-c", f"cat {named} 2> /dev/null || test -d {named} && echo directory"]
        done = confinement.run(room, argv, scratch, timeout_s=60, environ={})
    except sandbox.SandboxUnavailable:
        return "refused"
    return "refused" if done.stderr.startswith("bwrap: ") else done.stdout.strip()


def test_nothing_of_how_a_sandbox_was_made_is_open_in_it(home: Path) -> None:
    (home / "given").mkdir()
    seen = tried(
        home,
        """
        import json, os
        print(json.dumps({name: os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")
                          if os.path.exists(f"/proc/self/fd/{name}")}))
        """,
        reads=[home / "given"],
    )
    assert set(seen) <= {"0", "1", "2"}, seen


@pytest.mark.skipif(os.geteuid() != 0, reason="ONLY ROOT gives runs another account, to which something may be closed")
def test_what_others_keep_in_a_closed_directory_is_not_shown(
    home: Path, open_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = open_directory / "bob" / "data.jsonl"
    data.parent.mkdir(mode=0o700)
    data.write_text("bob's")
    data.chmod(0o644)
    with pytest.raises(sandbox.SandboxUnavailable, match=f"lies in {data.parent}, which is closed"):
        confinement.make(home / "scratch", ours=[home], reads=[data])
    assert f"lies in {data.parent}" in confinement.closed_to_runs(data, [home])
    program = f"import json; print(json.dumps({{'read': open({str(data)!r}).read()}}))"
    monkeypatch.setenv(confinement.READABLE_VARIABLE, str(data))
    assert tried(home, program, reads=[data]) == {"read": "bob's"}
    assert confinement.closed_to_runs(data, [home]) == ""


def test_code_whose_cache_is_closed_is_shown_and_imported(home: Path, open_directory: Path) -> None:
    code = open_directory / "code"
    cache = code / "package" / "__pycache__"
    cache.mkdir(parents=True)
    (code / "package" / "__init__.py").write_text("WORD = 'from the source'")
    py_compile.compile(str(code / "package" / "__init__.py"))
    for path in (code, *code.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    cache.chmod(0o700)  # as a control plane makes it, whose umask keeps others out
    assert confinement.closed_to_runs(code, [home]) == ""
    program = f"import sys; sys.path.append({str(code)!r}); import json, package; print(json.dumps(package.WORD))"
    assert tried(home, program, reads=[code]) == "from the source"


def test_packages_that_were_installed_in_place_are_shown_and_nothing_else_of_their_project(
    home: Path, open_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As setuptools does it: a finder imports them, and their directory is on no path."""
    project, site = open_directory / "my project", tmp_path / "site"
    for place, name in (
        (project / "words", "__init__.py"),
        (project / "src" / "more", "__init__.py"),
        (project, "key"),
    ):
        place.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("")
    told = site / "words-1.dist-info"
    told.mkdir(parents=True)
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: words\nVersion: 1\n")
    (told / "top_level.txt").write_text("words\nmore\nmissing\n")
    (told / "direct_url.json").write_text(json.dumps({"url": project.as_uri(), "dir_info": {"editable": True}}))
    monkeypatch.syspath_prepend(str(site))
    room = confinement.make(home / "scratch", ours=[home])
    assert room is not None
    shown = {Path(each) for each in room.readable}
    assert {project / "words", project / "src" / "more"} <= shown
    assert not {project, project / "key", project / "src"} & shown
    assert Path(confinement.__file__).parents[2] not in shown


def test_variables_of_the_control_plane_stay_outside(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE_URL", "ROLLYARD_SECRET_KEY", "HF_HUB_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "canary-5e1f")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):  # of which a sandbox without a network has none
        monkeypatch.setenv(name, "ib0")
    seen = tried(home, "import json, os; print(json.dumps(dict(os.environ)))")
    assert "canary-5e1f" not in str(seen)
    assert seen["NCCL_DEBUG"] == "INFO"
    assert "ib0" not in str(seen)
    assert confinement.variables(home, network=True)["NCCL_SOCKET_IFNAME"] == "ib0"
