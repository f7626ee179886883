"""ROLLYARD_HOME: the one directory this installation writes into, and the paths inside it.

secret_key      signs sessions and login links; made once, mode 0600
passwords/      of the embedded servers' accounts, a file each; made once, mode 0600
secrets/        keys of endpoints, a file each, mode 0600; written by whoever keeps the installation
postgres/       data directory of the embedded PostgreSQL
run/            sockets of the embedded servers (elsewhere when the path is too long for a socket)
static/         collected static files
runs/           checkpoints, weights and logs, a directory per run
models/         models made here, a directory per name
exports/        files of exports, a directory each
up.lock up.json the `rollyard up` that holds this home
"""

import hashlib
import os
import secrets
import stat
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from environments.disk import write_file

_MAX_SOCKET_PATH_BYTES = 107
"""`sun_path` of Linux without its final NUL; PostgreSQL and Redis both refuse a longer one."""
_LONGEST_SOCKET = "postgres/.s.PGSQL.5432.lock"
DATABASE = "rollyard"
FOR_RUNS = "for_runs"
"""In the state of a scope: the sandbox that a request over `Home.runs_socket` is from."""
APPLICATION, OWNER = "rollyard", "rollyard_owner"
"""Roles of the embedded PostgreSQL: one reads and writes rows, the other owns the tables and migrates them."""
OWNER_ONLY = 0o077
"""The umask of everything that writes here."""
CLOSED = ("caches", "demo", "exports", "logs", "models", "passwords", "runs", "secrets", "static")
"""Directories of a home that nobody else may even pass."""


class UnsafeHome(RuntimeError):
    """A path that must be ours alone belongs to somebody else."""


def default_home() -> Path:
    """Return where data goes when ROLLYARD_HOME does not say: the platform's place for a user's data.

    Root has a place of its own because PostgreSQL, which refuses to run as root, could not look into /root.
    """
    if os.geteuid() == 0:
        return Path("/var/lib/rollyard")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "rollyard"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "rollyard"


def runs_directory(home: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """Return where the runs of a home are: in it, or where ROLLYARD_RUNS_DIR says."""
    named = environ.get("ROLLYARD_RUNS_DIR")
    return Path(os.path.abspath(Path(named).expanduser() if named else home / "runs"))


@dataclass(frozen=True)
class Home:
    """Paths of one installation. Everything is derived from `path`, so two processes never have to agree on more."""

    path: Path

    @classmethod
    def from_environ(cls) -> "Home":
        """Return the home that ROLLYARD_HOME names, or the default one."""
        value = os.environ.get("ROLLYARD_HOME")
        return cls((Path(value).expanduser() if value else default_home()).absolute())

    @property
    def postgres_data(self) -> Path:
        return self.path / "postgres"

    @property
    def lock_file(self) -> Path:
        return self.path / "up.lock"

    @property
    def record_file(self) -> Path:
        return self.path / "up.json"

    @property
    def certificate_file(self) -> Path:
        """Of the lines to other machines (`controlplane/certificate.py`)."""
        return self.path / "lines" / "certificate.pem"

    @property
    def runs(self) -> Path:
        """Directory of the runs; ROLLYARD_RUNS_DIR may name one elsewhere."""
        return runs_directory(self.path)

    @property
    def run_dir(self) -> Path:
        """Directory of the sockets; under the temporary directory when the home's path would be too long."""
        inside = self.path / "run"
        if len(os.fsencode(inside / _LONGEST_SOCKET)) <= _MAX_SOCKET_PATH_BYTES:
            return inside
        digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"rollyard-{digest}"

    @property
    def postgres_socket_dir(self) -> Path:
        return self.run_dir / "postgres"

    @property
    def redis_socket(self) -> Path:
        return self.run_dir / "redis.sock"

    @property
    def database_url(self) -> str:
        """URL of the embedded PostgreSQL for the application, whether or not it runs; the password is in a file."""
        return self._database_url(APPLICATION)

    @property
    def owner_database_url(self) -> str:
        """The same for the owner of its tables, who migrates them."""
        return self._database_url(OWNER)

    def _database_url(self, role: str) -> str:
        where = f"host={quote(str(self.postgres_socket_dir))}&passfile={quote(str(self._password_file(role)))}"
        return f"postgresql://{role}@/{DATABASE}?{where}"

    @property
    def runs_socket(self) -> Path:
        """Where the web process listens for the code of runs, which has no network and sees only its directory."""
        return self.run_dir / "runs" / "api.sock"

    def server_socket(self, number: int) -> Path:
        """Where an inference server listens; each has a directory of its own."""
        return self.run_dir / "serve" / str(number) / "vllm.sock"

    @property
    def caches(self) -> Path:
        """What servers keep between starts, a directory per project."""
        return self.path / "caches"

    @property
    def redis_url(self) -> str:
        """URL of the embedded Redis, whether or not it runs. Its password is in it: neither print it nor pass it on."""
        return f"unix://:{self.redis_password()}@{quote(str(self.redis_socket))}?db=0"

    def create(self) -> None:
        """Make the home and its socket directory, open to nobody else.

        Others may pass through (0711) but not look: the account PostgreSQL runs under when we are root has to. What
        lies below is closed, also where it was made before it was.
        """
        passable = 0o711 if os.geteuid() == 0 else 0o700
        for directory in (self.path, self.run_dir):
            directory.mkdir(parents=True, exist_ok=True)
            status = directory.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                raise UnsafeHome(f"{directory} is not a directory of ours: remove it or choose another ROLLYARD_HOME")
            directory.chmod(passable)
        for name in CLOSED:
            with suppress(FileNotFoundError):
                (self.path / name).chmod(0o700)
        with suppress(FileNotFoundError):
            status = self.runs.stat()
            # One that is somebody else's, or everybody's like /tmp, is not ours to close: `safety` refuses it.
            if status.st_uid == os.geteuid() and not status.st_mode & stat.S_ISVTX:
                self.runs.chmod(0o700)

    def secret_key(self) -> str:
        """Return the signing key, making it at the first call."""
        return self._made_once(self.path / "secret_key", lambda: secrets.token_urlsafe(48))

    def database_password(self, role: str) -> str:
        """Return the password of a role of the embedded PostgreSQL, making it at the first call."""
        # As libpq reads it: host, port, database, role, password.
        line = self._made_once(self._password_file(role), lambda: f"*:*:*:{role}:{secrets.token_urlsafe(32)}")
        return line.rpartition(":")[2]

    def redis_password(self) -> str:
        """Return the password of the embedded Redis, making it at the first call."""
        return self._made_once(self._password_file("redis"), lambda: secrets.token_urlsafe(32))

    def _password_file(self, account: str) -> Path:
        return self.path / "passwords" / account

    def _made_once(self, path: Path, make: Callable[[], str]) -> str:
        try:
            return path.read_text().strip()
        except FileNotFoundError:
            self.create()
            path.parent.mkdir(mode=0o700, exist_ok=True)
        # Of two processes that start together, one writes the secret and both read it.
        write_file(path, make().encode(), mode=0o600, replace=False)
        return path.read_text().strip()
