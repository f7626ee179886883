"""The clients of a storm, as processes."""

import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

from tests.chaos.history import Act, Outcome, read


class Crowd:
    """Submitters and trainers; each writes a history of its own into one directory."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self._seed = seed
        self._argv: dict[str, list[str]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def add(self, kind: str, *, module: str = "tests.chaos.native_clients", **options: object) -> None:
        """Start a client. The options are those of its command line."""
        number = len(self._processes) + 1
        name = f"{kind}-{number}"
        options |= {"number": number, "seed": self._seed, "history": self.directory / f"{name}.jsonl"}
        words = [word for key, value in options.items() for word in (f"--{key.replace('_', '-')}", str(value))]
        self._argv[name] = [sys.executable, "-m", module, kind, *words]
        self._start(name)

    def _start(self, name: str) -> None:
        with (self.directory / f"{name}.log").open("a") as log:
            self._processes[name] = subprocess.Popen(self._argv[name], stderr=log)

    def replace(self, choice: float) -> None:
        """Kill a client, the one at ``choice`` of the whole in [0, 1), and start it again: its history goes on."""
        name = sorted(self._processes)[int(choice * len(self._processes))]
        self._processes[name].kill()
        self._processes[name].wait()
        self._start(name)

    def stop(self, kind: str = "") -> None:
        """Ask the clients of a kind to end, wait until they did. Raises AssertionError for one that broke."""
        chosen = {name: process for name, process in self._processes.items() if name.startswith(kind)}
        for process in chosen.values():
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for name, process in chosen.items():
            assert process.wait(120) in {0, -signal.SIGTERM}, f"{name} broke: {self._complaint(name)}"

    def kill(self) -> None:
        """End what is left, whatever happened."""
        for process in self._processes.values():
            process.kill()
            process.wait()

    def check(self) -> None:
        """Raise AssertionError if a client ended by itself: there is no load any more, and no reason for it."""
        for name, process in self._processes.items():
            assert process.poll() is None, f"{name} ended with {process.returncode}: {self._complaint(name)}"

    def counts(self, run: str) -> dict[str, int]:
        """How the calls about a run ended.

        A batch that names no step may be received again without a fault: its sender died before it could say that the
        batch had arrived, and the protocol has no acknowledgement. How often is worth knowing.
        """
        calls = read(self.directory, run)
        groups: Counter[Outcome] = Counter()
        for call in calls:
            groups[call.outcome] += len(call.asked.groups)
        fetched = [call.heard for call in calls if call.asked.act is Act.FETCH and call.heard and call.heard.sha256]
        nameless = Counter(heard.sha256 for heard in fetched if heard.step is None)
        return {
            "acknowledged": groups[Outcome.OK],
            "refused": groups[Outcome.FAIL],
            "unknown": groups[Outcome.UNKNOWN],
            "registrations": sum(call.asked.act is Act.REGISTER and call.outcome is Outcome.OK for call in calls),
            "batches_received": len({heard.sha256 for heard in fetched}),
            "received_again": nameless.total() - len(nameless),
        }

    def _complaint(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text()[-2000:]
