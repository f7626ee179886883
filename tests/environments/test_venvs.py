"""Virtual environments for environments: made by the real venv, uv and pip, from wheels in a directory."""

import fcntl
import os
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from uv import find_uv_bin

from environments import packages, venvs
from environments.venvs import VenvError

INSIDE = (
    "import importlib.util, os, environments.isolated.host, greeting;"
    "print(greeting.WORD, importlib.util.find_spec('rollouts'), os.path.realpath(environments.__path__[0]))"
)


def test_what_was_never_installed_is_found_with_the_command_that_does(tmp_path: Path) -> None:
    with pytest.raises(VenvError, match="gymnasium does not exist: `rollyard envs install gymnasium` makes it"):
        venvs.find(tmp_path, "gymnasium")
    with pytest.raises(VenvError, match=r"`rollyard envs install mine PACKAGE \.\.\.` makes it"):
        venvs.find(tmp_path, "mine")
    assert venvs.listing(tmp_path / "nowhere") == []


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "a b", "-x", "x" * 65])
def test_a_name_that_could_be_a_path_is_none(tmp_path: Path, name: str) -> None:
    for act in (venvs.find, venvs.remove):
        with pytest.raises(VenvError, match="names no virtual environment"):
            act(tmp_path, name)
    with pytest.raises(VenvError, match="names no virtual environment"):
        venvs.install(tmp_path, name, ["greeting"])


@pytest.mark.parametrize(
    ("name", "packages", "recipes", "message"),
    [
        ("mine", [], [], "mine is not a recipe .*: say which packages to install"),
        ("mine", ["--index-url"], [], "'--index-url' is an option of pip"),
        ("mine", [], ["gym"], "no recipe is named 'gym'. Known: atropos, gymnasium"),
    ],
)
def test_an_order_that_names_nothing_to_install_is_refused(
    tmp_path: Path, name: str, packages: list[str], recipes: list[str], message: str
) -> None:
    with pytest.raises(VenvError, match=message):
        venvs.install(tmp_path, name, packages, recipes=recipes)
    assert not list(tmp_path.glob("*"))


def test_a_directory_elsewhere_is_used_as_it_is(tmp_path: Path) -> None:
    assert venvs.find(tmp_path, sys.prefix) == Path(sys.prefix, "bin", "python")
    with pytest.raises(VenvError, match="has no bin/python"):
        venvs.find(tmp_path, str(tmp_path))


def test_one_that_was_begun_only_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "mine" / "bin").mkdir(parents=True)
    (tmp_path / "mine" / "bin" / "python").symlink_to(sys.executable)
    with pytest.raises(VenvError, match="mine is there only in part"):
        venvs.find(tmp_path, "mine")
    assert [(each.name, each.is_complete) for each in venvs.listing(tmp_path)] == [("mine", False)]


def test_only_one_installs_a_name_at_a_time(tmp_path: Path) -> None:
    with open(tmp_path / ".mine.lock", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(VenvError, match="another process installs or removes mine just now"):
            venvs.install(tmp_path, "mine", ["greeting"])


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that pip finds: msgspec as it is installed here, and a package of our own."""
    directory = tmp_path_factory.mktemp("wheels")
    ours = distribution("msgspec")
    [tag] = [line.split(": ")[1] for line in (ours.read_text("WHEEL") or "").splitlines() if line.startswith("Tag")][:1]
    with zipfile.ZipFile(directory / f"msgspec-{ours.version}-{tag}.whl", "w") as wheel:
        for file in ours.files or []:
            if file.suffix != ".pyc" and file.parts[0] != "..":
                wheel.write(str(file.locate()), str(file))
    for version in ("1.0", "2.0"):
        info = f"greeting-{version}.dist-info"
        with zipfile.ZipFile(directory / f"greeting-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr("greeting.py", f'WORD = "hello {version}"\n')
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: greeting\nVersion: {version}\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
    return directory


def installer(venv: Path) -> str:
    """Who installed the greeting there."""
    [file] = venv.glob("lib/*/site-packages/greeting-*.dist-info/INSTALLER")
    return file.read_text().strip()


@pytest.mark.slow
def test_what_pip_is_configured_to_take_is_taken_and_what_it_alone_can_do_is_left_to_pip(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    config = tmp_path / "pip.conf"
    config.write_text(f"[global]\nno-index = true\n[install]\nfind-links = {wheels}\nconstraint = {tmp_path}/limits\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    (tmp_path / "limits").write_text("greeting<2\n")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "made"], check=True)
    python = tmp_path / "made" / "bin" / "python"
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "private"))
    uv = [find_uv_bin(), "pip", "install", f"--target={tmp_path / 'elsewhere'}", "--no-index", f"--find-links={wheels}"]
    subprocess.run([*uv, "greeting<2"], umask=0o077, check=True)
    says = [str(python), "-c", "import greeting; print(greeting.WORD)"]
    packages.install(python, ["greeting"])
    assert subprocess.check_output(says, text=True) == "hello 1.0\n"
    assert installer(tmp_path / "made") == "uv"
    for path in (tmp_path / "made").glob("lib/*/site-packages/**/greeting*"):
        assert path.stat().st_mode & 0o004, path
    monkeypatch.setenv("PIP_PREFER_BINARY", "1")
    (tmp_path / "limits").write_text("")
    packages.install(python, ["--upgrade", "greeting"])
    assert subprocess.check_output(says, text=True) == "hello 2.0\n"
    assert installer(tmp_path / "made") == "pip"


@pytest.mark.slow
def test_an_installed_one_runs_our_host_with_its_packages_and_nothing_else_of_ours(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    half = tmp_path / "mine" / "lib"
    half.mkdir(parents=True)  # left by one that was killed
    assert venvs.install(tmp_path, "mine", ["greeting<2"])
    python = venvs.find(tmp_path, "mine")
    said = subprocess.run([python, "-c", INSIDE], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert said.split() == ["hello", "1.0", "None", str(Path(venvs.__file__).parent)]
    assert installer(tmp_path / "mine") == "uv"
    unreadable = [each for each in (tmp_path / "mine").rglob("*") if not each.stat().st_mode & 0o004]
    assert unreadable == []

    assert not venvs.install(tmp_path, "mine", ["greeting<2"])
    with pytest.raises(
        VenvError, match=r"mine is there already, with other packages .*`rollyard envs remove mine` first"
    ):
        venvs.install(tmp_path, "mine", ["greeting"])
    with pytest.raises(VenvError, match=r"installing nowhere-to-be-found.*failed:\n(.*\n)*.*nowhere-to-be-found"):
        venvs.install(tmp_path, "other", ["nowhere-to-be-found"])
    [venv] = venvs.listing(tmp_path)
    assert (venv.name, venv.is_complete, venv.packages, venv.recipes) == ("mine", True, ("greeting<2",), ())
    assert venv.python == ".".join(map(str, sys.version_info[:3]))

    link = next((tmp_path / "mine").glob("lib/*/site-packages/environments"))
    link.unlink()
    link.symlink_to(tmp_path)  # of an installation that was elsewhere
    with pytest.raises(VenvError, match="mine is there only in part"):
        venvs.find(tmp_path, "mine")
    venvs.remove(tmp_path, "mine")
    assert not (tmp_path / "mine").exists()
    with pytest.raises(VenvError, match="there is no virtual environment mine"):
        venvs.remove(tmp_path, "mine")


BACKEND = """
import zipfile

def build_wheel(directory, config_settings=None, metadata_directory=None):
    name, info = "parting-1.0-py3-none-any.whl", "parting-1.0.dist-info"
    with zipfile.ZipFile(f"{directory}/{name}", "w") as wheel:
        wheel.write("parting.py")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: parting\\nVersion: 1.0\\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return name
"""
PROJECT = """
[project]
name = "parting"
version = "1.0"
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""


@pytest.mark.slow
def test_a_package_of_this_machine_is_installed_as_it_is_now(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    package = tmp_path / "package"
    package.mkdir()
    for name, text in (("backend.py", BACKEND), ("pyproject.toml", PROJECT), ("parting.py", "WORD = 'bye'\n")):
        (package / name).write_text(text)
    monkeypatch.chdir(tmp_path)

    def word() -> str:
        python = venvs.find(tmp_path / "envs", "mine")
        return subprocess.check_output([python, "-c", "import parting; print(parting.WORD)"], text=True).strip()

    assert venvs.install(tmp_path / "envs", "mine", ["./package"])
    assert word() == "bye"
    (package / "parting.py").write_text("WORD = 'farewell'\n")
    assert venvs.install(tmp_path / "envs", "mine", ["./package"])
    assert word() == "farewell"
    assert not venvs.install(tmp_path / "envs", "mine", [str(package)])
