"""Install packages into a Python, as pip would: `python -m environments.packages PYTHON ARGUMENT...`.

    what pip is configured to take ──► uv.toml ──► uv ── fails, or cannot be told ──► pip

uv takes a fifth of pip's time. What it cannot do, and what cannot be done, is pip's to try and to explain. Standard
library only: it runs before anything else is installed.
"""

import ast
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_READABLE = 0o022
"""The umask of what everybody may read and we alone may write."""
_LISTS = {"extra-index-url", "find-links"}
"""What uv knows by the same name; so it does `index-url` and `no-index`."""
_VARIABLES = {"cert": "SSL_CERT_FILE", "default-timeout": "UV_HTTP_TIMEOUT", "timeout": "UV_HTTP_TIMEOUT"}
_OF_NO_MATTER = {
    "cache-dir", "config-file", "disable-pip-version-check", "no-cache-dir", "no-color", "no-input", "progress-bar",
    "quiet", "require-virtualenv", "retries", "root-user-action", "verbose",
}  # fmt: skip
"""What changes nothing of what is installed, nor from where."""


class Failed(Exception):
    """A program did; what it said."""


def install(python: Path, arguments: Sequence[str]) -> None:
    """Install what pip's arguments name, and compile it unless `--no-compile` is among them.

    Blocks, for minutes. Raises Failed, with what pip said.
    """
    if (uv := _find_uv()) is not None and (configured := _configured(python)) is not None:
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:  # which may have a password of an index
            words, environ = _write(configured, file.name)
            with suppress(Failed):
                return run([uv, "pip", "install", "-q", "--python", str(python), *words, *arguments], environ)
    run([str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-input", *arguments])


def _find_uv() -> str | None:
    try:
        from uv import find_uv_bin

        return os.fspath(find_uv_bin())
    except (ImportError, FileNotFoundError):
        return None


def _configured(python: Path) -> dict[str, str] | None:
    """What pip is configured to do, by option; None where something of it is for pip alone."""
    asked = [str(python), "-m", "pip", "--disable-pip-version-check", "config", "list"]
    try:
        done = subprocess.run(asked, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    found = {**_of("global", done.stdout), **_of("install", done.stdout), **_of(":env:", done.stdout)}
    known = {*_LISTS, "index-url", "no-index", "constraint", *_VARIABLES, *_OF_NO_MATTER}
    return found if found.keys() <= known else None


def _of(section: str, listed: str) -> dict[str, str]:
    """One section of what `pip config list` prints: `section.option='value'`."""
    own = (line for line in listed.splitlines() if line.startswith(f"{section}."))
    lines = (line.removeprefix(f"{section}.").partition("=") for line in own)
    return {option: str(ast.literal_eval(value)) for option, _, value in lines}


def _write(configured: Mapping[str, str], path: str) -> tuple[list[str], dict[str, str]]:
    """Write the same as uv's configuration; return arguments and variables for what has no place there."""
    Path(path).write_text("[pip]\n" + "".join(_lines(configured)))
    constraints = (f"--constraints={file}" for file in configured.get("constraint", "").split())
    environ = {_VARIABLES[option]: value for option, value in configured.items() if option in _VARIABLES}
    # Files are links to those of the cache, which in uv's usual place have the mode of whoever was there first.
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    environ["UV_CACHE_DIR"] = os.path.join(caches, "rollyard", "uv")
    return [f"--config-file={path}", *constraints], environ


def _lines(configured: Mapping[str, str]) -> Iterator[str]:
    yield 'index-strategy = "unsafe-best-match"\n'  # as pip has it: an index is as good as another
    yield "compile-bytecode = true\n"
    for option, value in configured.items():
        if option in _LISTS:
            yield f"{option} = {json.dumps(value.split())}\n"
        elif option == "index-url":
            yield f"{option} = {json.dumps(value)}\n"
        elif option == "no-index":
            yield f"{option} = {'true' if value.lower() in {'1', 'true', 'yes', 'on'} else 'false'}\n"


def run(command: Sequence[str], environ: Mapping[str, str] = {}) -> None:
    """Run a program whose files everybody may read. Raises Failed."""
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            umask=_READABLE,
        )
    except OSError as error:
        raise Failed(str(error)) from error
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise Failed("\n".join(said) or f"{command[0]} ended with {done.returncode}")


if __name__ == "__main__":
    try:
        install(Path(sys.argv[1]), sys.argv[2:])
    except Failed as failure:
        sys.exit(str(failure))
