"""What workers ask of the database all the time, by pgbench: the statements of the services, as they were sent.

    every second        the replicas that serve, which of them have answered, the run's state, trials
    now and then        the load of the driver

A worker in Python needs milliseconds of CPU for these, which five hundred on one machine have not. pgbench sends the
same statements, over a connection for each worker and at the same rate.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

_HOLDER = "stub-of-pgbench"


class Polls(NamedTuple):
    """Scripts of pgbench."""

    look: Path
    report: Path
    vain: Path
    """A claim that finds nothing."""


def write(directory: Path, run: Any, *, slots: int, answers: float) -> Polls:
    """`slots`: groups that each worker plays; `answers`: the probability that the replica of one has answered within a
    second."""
    from django.db.models import Max, Min

    from rollouts.models import Run
    from rollouts.selectors import fleet
    from rollouts.services.groups import leases, loads
    from rollouts.services.runs import answers as noted_answers
    from rollouts.services.runs import trials

    serving = fleet.list_serving(run)
    bounds = serving.order_by().aggregate(lowest=Min("pk"), highest=Max("pk"))
    one = serving.first()
    assert one is not None, "no replica serves"
    names = [f":answered_{at}" for at in range(slots)]
    look = _sent(lambda: list(fleet.list_serving(run)))
    for at in range(slots):
        look += [
            f"\\set answered_{at} 0",
            "\\set chance random(1, 1000000)",
            f"\\if :chance <= {int(answers * 1_000_000)}",
            f"\\set answered_{at} random({bounds['lowest']}, {bounds['highest']})",
            "\\endif",
        ]
    noted = _sent(lambda: noted_answers.note([one]))
    look += [line.replace(f"'{{{one.pk}}}'::int2[]", f"ARRAY[{', '.join(names)}]") for line in noted]
    look += _sent(lambda: Run.objects.values_list("state", flat=True).get(pk=run.pk))
    look += _sent(lambda: trials.claim(run, holder=_HOLDER, limit=2))
    load = {"sessions": 40, "queued": 0, "asking": 40, "scoring": 0, "tokens": 80_000}
    report = [
        line.replace(_HOLDER, "stub-:client_id") for line in _sent(lambda: loads.report(run, holder=_HOLDER, **load))
    ]
    loads.forget(run, holder=_HOLDER)
    lease_s, rooms = run.parsed.workers.lease_s, {ref.run_name: 0 for ref in run.parsed.environments}
    vain = _sent(lambda: leases.claim(run, holder=_HOLDER, limit=0, lease_s=lease_s, rooms=rooms))
    polls = Polls(*(directory / f"{name}.sql" for name in Polls._fields))
    polls.vain.write_text("\n".join([*vain, ""]))
    polls.look.write_text("\n".join([*look, ""]))
    polls.report.write_text("\n".join([*report, ""]))
    return polls


def _sent(call: Callable[[], Any]) -> list[str]:
    """The statements of a call, one a line; without the empty one by which a pool looks at a connection that it hands
    out, which pgbench cannot send."""
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    with CaptureQueriesContext(connection) as captured:
        call()
    return [_in_one_line(query["sql"]) for query in captured.captured_queries]


def _in_one_line(statement: str) -> str:
    lines = [line for line in statement.splitlines() if not line.lstrip().startswith("--")]
    return " ".join(" ".join(lines).split()).rstrip(";") + ";"


def pgbench() -> list[str]:
    """The start of its command line: at our database."""
    from django.conf import settings

    from controlplane.up import embedded
    from controlplane.up.accounts import account_of_postgres

    program = embedded.postgres_binaries(settings.HOME, account_of_postgres()) / "pgbench"
    return [str(program), "--no-vacuum", f"--dbname={settings.HOME.database_url}"]


class Pollers:
    """pgbench at work: scripts by weight, so many a second, over so many connections."""

    def __init__(
        self, name: str, scripts: dict[Path, int], *, per_s: float, clients: int, seconds: float, directory: Path
    ) -> None:
        self.name = name
        self._log, self._scripts = directory / name, list(scripts)
        command = [
            *(*pgbench(), f"--client={clients}", "--jobs=1", f"--rate={per_s}", f"--time={int(seconds)}"),
            *("--log", f"--log-prefix={self._log}"),
            *(f"--file={script}@{weight}" for script, weight in scripts.items()),
        ]
        self.process = subprocess.Popen(
            command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def finish(self, since: float, until: float) -> dict[str, list[float]]:
        """Wait for its end: the seconds of each, by script, between two moments, from when it was due. Raises
        RuntimeError with what it said when it failed."""
        said, _ = self.process.communicate()
        if self.process.returncode:
            raise RuntimeError(f"pgbench: {said[-2000:]}")
        found: dict[str, list[float]] = {script.stem: [] for script in self._scripts}
        for file in self._log.parent.glob(f"{self._log.name}.*"):
            if file.suffix == ".sql":
                continue
            for line in file.read_text().splitlines():
                words = line.split()
                if since <= float(words[4]) + float(words[5]) / 1e6 < until:
                    found[self._scripts[int(words[3])].stem].append(float(words[2]) / 1e6)
        return found
