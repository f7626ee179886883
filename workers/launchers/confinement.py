"""Make a sandbox ready for one command: its scratch directory, its account, its variables; and ask whether any can be.

`sandbox` says what a sandbox is; this knows the installation it is made in.
"""

import json
import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from environments import unconfined
from environments.disk import detour
from environments.reserved import reserved
from workers.launchers import accounts, limits, sandbox
from workers.launchers.sandbox import Sandbox, SandboxUnavailable

log = logging.getLogger(__name__)

_PASSED = frozenset({"LANG", "LANGUAGE", "PATH", "TZ", "ROLLYARD_UP", "ROLLYARD_UP_PID"})
_PASSED_PREFIXES = (
    "CUDA_",
    "GLOO_",
    "HF_HUB_",
    "KMP_",
    "LC_",
    "LD_LIBRARY_",
    "MKL_",
    "NCCL_",
    "NVIDIA_",
    "OMP_",
    "PYTHON",
    "PYTORCH_",
    "TOKENIZERS_",
    "TORCH",
    "TRANSFORMERS_",
    "TRITON_",
    "VLLM_",
)
"""How programs for GPUs, tensors and models are tuned. Everything else in our environment may be a secret."""
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_SECRET = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")
READABLE_VARIABLE = "ROLLYARD_SANDBOX_READABLE"
"""Paths, separated by colons, that every sandbox may read: libraries or data outside of /usr and the environment."""
_PROBE_DEADLINE_S = 20.0
_LOOKED_AT = 1_000
_CHECKOUT = Path(__file__).resolve().parents[2]
_MOST_LINKS = 40
"""On a way, as Linux has it."""


def make(
    scratch: Path,
    *,
    reads: Iterable[Path] = (),
    writes: Iterable[Path] = (),
    ours: Iterable[Path] = (),
    gpus: bool = False,
    network: bool = False,
    root: Path | None = None,
) -> Sandbox | None:
    """The sandbox of a command whose directory for anything is ``scratch``, which is made. None: they are switched off.

    What of ``reads`` lies in one of ``ours`` is opened to the account of runs; other files must be readable already.
    With a ``root`` what is written lies below that, and so does what is read, where it is there; inside it has its own
    path. Raises SandboxUnavailable.
    """
    written = [scratch, *writes]
    for directory in written:
        _placed(directory, root, must=True).mkdir(parents=True, exist_ok=True)
    if unconfined.is_unconfined():
        if root is not None:
            raise SandboxUnavailable("without a sandbox a file has its own path alone: share the home with the nodes")
        return None
    account = accounts.account_of_runs()
    places = [path.absolute() for path in ours]
    everywhere = [path.absolute() for path in _readable_everywhere() if path.exists()]
    # All of it before anything is opened: what is refused is left as it was.
    always = {path: _straight(path, places) for path in everywhere}
    asked_for = {path: _straight(_placed(path, root), places) for path in reads if _placed(path, root).exists()}
    given = asked_for | always
    made = {path: _straight(_placed(path, root, must=True), places) for path in written}
    own = [real for real in given.values() if any(real.is_relative_to(place.resolve()) for place in places)]
    for path, real in asked_for.items():
        if not any(real.is_relative_to(each) for each in (*own, *always.values())):
            _refuse_way_out(_placed(path, root), real)
    try:
        accounts.give(account, made.values())
        accounts.open_to(account, own)
        for path, real in asked_for.items():
            if closed := accounts.find_closed(account, real):
                raise SandboxUnavailable(_closed_to(account, closed, path))
            if not any(real.is_relative_to(each) for each in (*own, *always.values())):
                _refuse_closed_way(account, real)
    except OSError as error:
        raise SandboxUnavailable(f"what a run is given changed while it was looked at: {error}") from error
    return Sandbox(
        # Under the name that is used and under the one behind a link.
        readable={str(name): str(real) for path, real in given.items() for name in (path, real)},
        writable={str(path): str(real) for path, real in made.items()},
        directory=str(scratch),
        gpus=gpus,
        network=network,
        account=account,
        bwrap=sandbox.find_program(),
    )


def _placed(path: Path, root: Path | None, *, must: bool = False) -> Path:
    """Where a path is on this node; `must`: below the root, also what is not there yet."""
    if root is None or path.is_relative_to(root.parent):
        return path
    below = root / path.relative_to("/")
    return below if must or below.exists() else path


def _straight(path: Path, places: Sequence[Path]) -> Path:
    """The way to `path` without links; below one of `places` what was named. Raises SandboxUnavailable.

    Somebody may exchange what lies there while we look, so what a link says there is never used.
    """
    if fault := detour(path, places):
        raise SandboxUnavailable(fault)
    forms = [form for place in places for form in (place, place.resolve())]
    inside = next((form for form in forms if path.is_relative_to(form)), None)
    real = path.resolve() if inside is None else inside.resolve() / path.relative_to(inside)
    if any(form.is_relative_to(each) for form in forms for each in (path, real)):
        raise SandboxUnavailable(f"{path} holds the home of the control plane, which no run may read")
    if inside is None and any(real.is_relative_to(form) for form in forms):
        raise SandboxUnavailable(f"{path} is a way around: it leads to {real}, which has to be named itself")
    return real


def _refuse_way_out(path: Path, real: Path) -> None:
    """Raise SandboxUnavailable where a link of somebody else leads to what no run is shown. What a path names was
    looked at as the run was launched, and may have become a link since; where links are root's or ours, or the path
    says where it leads, somebody allowed it."""
    if (fault := reserved(real)) and not reserved(path) and not _is_ours(path, real):
        raise SandboxUnavailable(f"{path} is a link, or behind one. {fault}")


def _is_ours(path: Path, real: Path) -> bool:
    """Whether the way to `path` leads to `real` by links alone that root or this account made."""
    for _ in range(_MOST_LINKS):
        link = next((each for each in reversed((path, *path.parents)) if each.is_symlink()), None)
        if link is None:
            return path == real  # or it was turned elsewhere while we looked
        if link.lstat().st_uid not in (0, os.geteuid()):
            return False
        path = Path(os.path.normpath(link.parent / link.readlink() / path.relative_to(link)))
    return False


def closed_to_runs(path: Path, ours: Iterable[Path]) -> str:
    """Why `make` would not show this path to a run, with the fix; "" when nothing speaks against it.

    To be asked before a run is stored: of a directory with very many files only the first are looked at.
    """
    try:
        account = "" if unconfined.is_unconfined() else accounts.account_of_runs()
        real = path.resolve()
        if not account or not path.exists() or any(real.is_relative_to(place.resolve()) for place in ours):
            return ""
        if closed := accounts.find_closed(account, real, at_most=_LOOKED_AT):
            return _closed_to(account, closed, path)
        if not any(real.is_relative_to(each.resolve()) for each in _readable_everywhere()):
            _refuse_closed_way(account, real)
    except (SandboxUnavailable, OSError) as error:
        return str(error)
    return ""


def _closed_to(account: str, closed: Path, named: Path) -> str:
    return f"the account of runs, {account}, cannot read {closed}: chmod -R o+rX {shlex.quote(str(named))}"


def _refuse_closed_way(account: str, real: Path) -> None:
    """Raise SandboxUnavailable where the account could not go by itself: others rely on a closed directory above."""
    if closed := accounts.find_impassable(account, real):
        raise SandboxUnavailable(
            f"{real} lies in {closed}, which is closed to the account of runs, {account}: copy it elsewhere, open the "
            f"directory (chmod o+x), or name the path in {READABLE_VARIABLE}"
        )


def variables(scratch: Path, *, network: bool = False) -> dict[str, str]:
    """What of our environment a command in a sandbox gets, and its own directory for homes and caches; with a `network`
    also which interfaces to use. Where there is none but loopback, NCCL and gloo would end for want of them."""
    passed = {
        name: value
        for name, value in os.environ.items()
        if (name in _PASSED or name.startswith(_PASSED_PREFIXES))
        and not name.endswith(_SECRET)
        and (network or name not in _INTERFACES)
    }
    # What is not here already cannot be had: there is no network.
    return {**passed, "HOME": str(scratch), "HF_HOME": str(scratch / "huggingface"), "HF_HUB_OFFLINE": "1"}


def run(
    room: Sandbox | None,
    argv: Sequence[str],
    scratch: Path,
    *,
    timeout_s: float,
    environ: Mapping[str, str],
    look: Callable[[], None] = lambda: None,
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end where `make` says; `look` is as that of `sandbox.run`. Raises what that does."""
    paths = os.pathsep.join(path for path in sys.path if path)
    given = {**variables(scratch), "PYTHONPATH": paths} if room else os.environ
    return sandbox.run(room, argv, timeout_s=timeout_s, environ={**given, **environ}, look=look)


def run_alone(
    argv: Sequence[str], directory: Path, timeout_s: float, environ: Mapping[str, str]
) -> "subprocess.CompletedProcess[str] | None":
    """Run a program that reads a directory, alone in one of ours. None, and a line in the log, when it cannot run."""
    place = directory.parent
    try:
        room = make(place / "scratch", reads=[directory], ours=[place])
        return run(room, argv, place / "scratch", timeout_s=timeout_s, environ=environ)
    except (SandboxUnavailable, limits.LimitExceeded, TimeoutError, subprocess.TimeoutExpired) as error:
        log.warning("%s was not run: %s", argv[:3], error)
        return None


def complaint_here() -> str:
    """Why nothing of a run may start here, with the fix; empty when it may: in a sandbox, or because they are off."""
    return "" if unconfined.is_unconfined() else complaint()


@cache
def complaint() -> str:
    """Why no sandbox can be made here, with the fix; empty when one was made and worked. Takes a tenth of a second."""
    try:
        box = Sandbox(account=accounts.account_of_runs(), bwrap=sandbox.find_program())
        done = sandbox.run(box, ["/bin/true"], timeout_s=_PROBE_DEADLINE_S, environ={"PATH": os.defpath})
    except (SandboxUnavailable, OSError, ValueError) as error:
        reason = str(error)
    except subprocess.TimeoutExpired:
        reason = f"bubblewrap did not answer within {_PROBE_DEADLINE_S:.0f} s"
    else:
        if done.returncode == 0:
            return ""
        reason = done.stderr.strip()[-300:] or f"bubblewrap ended with {done.returncode}"
    return (
        f"No sandbox can be made for runs: {reason}. Allow namespaces (AppArmor on Ubuntu: install its own package of "
        "bubblewrap; containers: --security-opt seccomp=unconfined, as root --cap-add SYS_ADMIN), or set "
        f"{unconfined.VARIABLE}=1, with which the code of a run reaches everything that this account reaches."
    )


def _readable_everywhere() -> list[Path]:
    """What the administrator named, and where packages are imported from that are installed in place."""
    named = [Path(path) for path in os.environ.get(READABLE_VARIABLE, "").split(":") if path]
    imported = [Path(path) for path in sys.path if path and Path(path).is_dir()]
    return [
        *named,
        *(path for path in imported if path.resolve() not in (_CHECKOUT, Path.cwd())),
        *_installed_in_place(),
    ]


def _installed_in_place() -> Iterator[Path]:
    """The packages of `pip install -e` that a finder of setuptools imports: their directories are on no path. Also what
    was installed since we were started, and of a project its packages alone: the rest may be anything."""
    for each in metadata.distributions():
        told = json.loads(each.read_text("direct_url.json") or "{}")
        if not told.get("dir_info", {}).get("editable"):
            continue
        project = Path(url2pathname(urlsplit(told["url"]).path))
        if project.resolve() == _CHECKOUT:
            continue
        for name in (each.read_text("top_level.txt") or "").split():
            places = (base / form for base in (project, project / "src") for form in (name, f"{name}.py"))
            yield from (place for place in places if os.path.exists(place))  # not those that we may not look at
