"""A model, a loss and an environment that attack, made ready for a run as somebody would: packages on the disk."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from controlplane.home import APPLICATION, OWNER
from tests.e2e.intruder.attack import REPORT
from tests.e2e.yard import Yard, make_tiny_model

SOURCE = Path(__file__).with_name("intruder")
ROLES = ("loss", "environment", "model", "server")


class Malice:
    """What the attacker has put on the machine."""

    def __init__(self, place: Path) -> None:
        self.packages = place / "packages"
        self.package = self.packages / "intruder"
        shutil.copytree(SOURCE, self.package, ignore=shutil.ignore_patterns("__pycache__"))
        about = self.packages / "intruder-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: intruder\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text("[rollyard.environments]\nintruder = intruder.guests:Intruder\n")
        self.model = make_tiny_model(place / "intruder-model")
        shutil.copy(SOURCE / "configuration_intruder.py", self.model)
        config = json.loads((self.model / "config.json").read_text())
        config["auto_map"] = {"AutoConfig": "configuration_intruder.IntruderConfig"}
        (self.model / "config.json").write_text(json.dumps(config))
        self._open()
        self.tempting: list[Path] = []
        """Directories that it tries to write into."""

    @property
    def words(self) -> list[str]:
        """Of a launch that lets all of it in."""
        config: dict[str, Any] = {
            "model.path": self.model,
            "model.trust_remote_code": "true",
            "algorithm.loss.type": "custom",
            "algorithm.loss.path": "intruder.guests.loss",
            "environments.0.name": "intruder",
        }
        return [f"{key}={value}" for key, value in config.items()]

    @property
    def allowed(self) -> list[tuple[str, str]]:
        """What an administrator has to allow for it."""
        return [
            ("remote_code", str(self.model)),
            ("loss", "intruder.guests.loss"),
            ("environment", "intruder"),
        ]

    def learn(self, yard: Yard, other_run: str, other_directory: Path) -> None:
        """Give the attacker everything that can be known of an installation without breaking in."""
        home = yard.home
        self.tempting = [home.path, home.path / "logs", other_directory]
        passwords = [home.database_password(APPLICATION), home.database_password(OWNER), home.redis_password()]
        key = home.secret_key()
        known = {
            "home": str(home.path),
            "files": [
                str(home.path / "secret_key"),
                str(home.path / "passwords"),
                str(home.path / "logs"),
                str(home.postgres_data),
                str(home.postgres_data / "pg_hba.conf"),
                str(home.record_file),
                str(other_directory / "weights"),
                str(other_directory / "weights" / "model.safetensors"),
                "/etc/shadow",
            ],
            "secrets": [key, *passwords],
            "postgres": str(home.postgres_socket_dir),
            "guesses": ["rollyard", "postgres"],
            "addresses": [
                str(home.redis_socket),
                str(home.postgres_socket_dir / ".s.PGSQL.5432"),
                ["127.0.0.1", int(yard.url.rpartition(":")[2])],
                ["192.0.2.1", 443],
            ],
            "processes": [(each.pid, _command_line(each.pid)) for each in yard.processes()],
            "other_run": other_run,
            "directories": [str(path) for path in self.tempting],
        }
        # The attacker's code lies here too; the secrets are only for it to recognise them.
        (self.package / "known.json").write_text(json.dumps(known))
        self._open()

    def outside(self, place: Path) -> dict[str, Any]:
        """The report of the same code where no sandbox holds it."""
        command = [sys.executable, "-m", "intruder.attack", "outside"]
        environ = {**os.environ, "PYTHONPATH": str(self.packages)}
        subprocess.run(command, cwd=place, env=environ, check=True, timeout=120)
        return read(place, "outside")

    def written(self) -> list[Path]:
        """What it wrote into directories that are none of its own."""
        return [path for directory in self.tempting for path in directory.glob("intruder-*")]

    def _open(self) -> None:
        for path in (self.packages, *self.packages.rglob("*"), self.model, *self.model.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)


def read(place: Path, role: str) -> dict[str, Any]:
    """The report of a role, somewhere below a directory. Raises ValueError when there are none or several."""
    [path] = place.rglob(REPORT.format(role))
    report: dict[str, Any] = json.loads(path.read_text())
    return report


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().hex()
    except OSError:
        return ""
