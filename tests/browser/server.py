"""The control plane as people reach it: uvicorn in a process of its own, on the test database and the test Redis."""

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from django.conf import settings

from tests import store
from tests.ports import free_port

READY_DEADLINE_S = 30.0


class Server:
    """One uvicorn on one port; it can be stopped and started again there."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return once it answers."""
        command = [sys.executable, "-m", "uvicorn", "controlplane.asgi:application", "--host", "127.0.0.1"]
        command += ["--port", str(self.port), "--log-level", "warning"]
        self._process = subprocess.Popen(command, env=environment(), cwd=settings.BASE_DIR)
        give_up_at = time.monotonic() + READY_DEADLINE_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > give_up_at:
                raise RuntimeError("uvicorn did not start; see its output above")
            time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/healthz", timeout=2):
                return True
        except (urllib.error.URLError, OSError):
            return False


def environment() -> dict[str, str]:
    """What makes the product's own settings point at this session's servers."""
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "ROLLYARD_HOME": str(settings.HOME.path),
        "ROLLYARD_SECRET_KEY": settings.SECRET_KEY,
        "DATABASE_URL": store.url(),
        "REDIS_URL": settings.REDIS_URL,
        "ROLLYARD_REFUSALS_SHARE": str(settings.REFUSALS_SHARE),
    }


def collect_static() -> None:
    """Collect the bundle as a real installation does, with hashed names."""
    bundle = Path(settings.BASE_DIR) / "frontend" / "static" / "frontend" / "main.js"
    if not bundle.exists():
        raise RuntimeError(f"{bundle} is missing: run `npm ci && npm run build` in frontend/ first")
    command = [sys.executable, "manage.py", "collectstatic", "--noinput", "--verbosity", "0"]
    subprocess.run(command, env=environment(), cwd=settings.BASE_DIR, check=True)
