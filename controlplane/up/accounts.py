"""The system account that PostgreSQL runs under when we are root, which it refuses to be, and what it may enter."""

import os
import pwd
import stat
import subprocess
from pathlib import Path

from controlplane.up.processes import Program, bare_environ
from workers.launchers.accounts import AccountMissing, ensure_account

ACCOUNT = "rollyard"


class EmbeddedError(RuntimeError):
    """An embedded server cannot be prepared or does not start; the message names the fix."""


def account_of_postgres() -> str:
    """Return the account to run PostgreSQL under, making it if we are root; "" is ours."""
    try:
        return ensure_account(ACCOUNT)
    except AccountMissing as error:
        raise EmbeddedError(
            f"PostgreSQL does not run as root, and {error}: start as another user, or set DATABASE_URL"
        ) from error


def private_directory(path: Path, account: str) -> None:
    """Make a directory that only the account of PostgreSQL (and root) may enter."""
    if account and (closed := closed_to_others(path.parent)):
        raise EmbeddedError(
            f"PostgreSQL, which does not run as root, cannot pass {closed}: `chmod o+x {closed}`, "
            "or choose another ROLLYARD_HOME (/var/lib/rollyard is the default)"
        )
    path.mkdir(mode=0o700, exist_ok=True)
    if path.is_symlink():
        raise EmbeddedError(f"{path} is a link: remove it")
    path.chmod(0o700)
    if account:
        entry = pwd.getpwnam(account)
        os.chown(path, entry.pw_uid, entry.pw_gid, follow_symlinks=False)


def closed_to_others(path: Path) -> Path | None:
    """Return the first directory on the way to `path`, itself included, that other users may not pass."""
    return next((each for each in [path, *path.parents] if not each.stat().st_mode & stat.S_IXOTH), None)


def run_as(account: str, *argv: Path | str, stdin: str = "") -> None:
    """Run a program to its end. Raises EmbeddedError with the end of what it said if it fails."""
    program = Program(name=Path(argv[0]).name, argv=tuple(map(str, argv)), account=account)
    done = subprocess.run(
        program.command(),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd="/",
        env=bare_environ(),
    )
    if done.returncode:
        raise EmbeddedError(f"{program.name} failed: {(done.stderr or done.stdout).strip()[-2000:]}")
