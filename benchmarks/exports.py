"""How fast and in how much memory a version of a dataset is exported, and what survives kills.

    python -m benchmarks.exports --rollouts 1000000            # JSONL, Parquet, five kills, 10,000 labels more
    python -m benchmarks.exports --rollouts 200000 --home /tmp/store   # keeps the store, and uses it again

A store of its own is filled by SQL: groups of eight rollouts, conversations of four messages and about 1 kB each. The
peak is that of the exporting process; what it has before its first row is told beside it. The exit status is 0 if five
kills came before the end, for which there have to be enough rollouts, and the bytes were the same after them and after
the labels.
"""

import argparse
import hashlib
import json
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks import large_store

GROUP = 8
_CHILD = "--child"
_LABELS = 10_000
_DEATHS = 5


def main() -> int:
    """Measure, and print a line of JSON for each figure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exports")
    parser.add_argument("--rollouts", type=int, default=1_000_000)
    parser.add_argument("--home", type=Path, help="keep the store here")
    parser.add_argument(_CHILD, nargs=3, metavar=("VERSION", "FORM", "PATH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return _export(*options.child)
    with large_store.opened(options.home) as root:
        from rollouts.models import ScoredGroup

        version = _filled(options.rollouts)
        _tell("store", rollouts=options.rollouts, version=version)
        whole, killed, again = (root / f"{name}.jsonl" for name in ("whole", "killed", "again"))
        _tell("jsonl", **_run(_command(version, "sft", whole)))
        _tell("parquet", **_run(_command(version, "sft", root / "whole.parquet")))
        deaths = kill(_command(version, "sft", killed), killed)
        is_same = _hash(killed) == _hash(whole)
        _tell("killed", deaths=deaths, same_bytes=is_same)
        large_store.label(ScoredGroup.objects.order_by("id").values_list("pk", flat=True)[:_LABELS])
        _run(_command(version, "sft", again))
        is_still = _hash(again) == _hash(whole)
        _tell("after labels", labels=_LABELS, same_bytes=is_still)
    return 0 if is_same and is_still and deaths == _DEATHS else 1


def _filled(rollouts: int) -> int:
    """The id of a version of every rollout of a run that has so many."""
    from rollouts.models import DatasetVersion
    from rollouts.services.datasets import making
    from rollouts.services.datasets.choosing import Recipe

    name = f"set-{rollouts}"
    if (known := DatasetVersion.objects.filter(dataset__name=name).first()) is not None:
        return known.pk
    run = large_store.create_run()
    large_store.fill(run, rollouts // GROUP, size=GROUP)
    began = time.perf_counter()
    recipe = Recipe(runs=[run.key])
    version = making.make(run.project, name=name, form="examples", recipe=recipe, actor="benchmark")
    _tell("made", seconds=round(time.perf_counter() - began, 1), members=version.member_count)
    return version.pk


def _command(version: int, form: str, path: Path) -> list[str]:
    return [sys.executable, "-m", "benchmarks.exports", _CHILD, str(version), form, str(path)]


def _run(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def kill(command: list[str], path: Path) -> int:
    """Export with kills at random moments, and to the end; returns how many there were before it was done. Raises
    CalledProcessError where it ends in another way."""
    dice = random.Random(1)
    journal = path.with_name(f".{path.name}.journal")
    for deaths in range(_DEATHS):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        before = journal.read_bytes() if journal.exists() else b""
        while process.poll() is None and (not journal.exists() or journal.read_bytes() == before):
            time.sleep(0.05)
        with suppress(subprocess.TimeoutExpired):
            process.wait(dice.uniform(0.0, 3.0))
        process.kill()
        status = process.wait()
        if status == 0:
            return deaths
        if status != -signal.SIGKILL:
            raise subprocess.CalledProcessError(status, command)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return _DEATHS


def _export(version: str, form: str, path: str) -> int:
    import resource

    import django

    django.setup()
    from rollouts.models import DatasetVersion, ExportForm
    from rollouts.services.datasets import files

    found = DatasetVersion.objects.select_related("dataset").get(pk=int(version))
    next(files.rendering.pages(found, ExportForm(form)))  # everything is loaded
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    manifest = files.write_file(found, ExportForm(form), Path(path))
    seconds = time.perf_counter() - began
    rows = manifest["rows"]["train"]
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    size = Path(path).stat().st_size
    facts = {"rows": rows, "seconds": round(seconds, 1), "rows_per_s": round(rows / seconds)}
    print(json.dumps(facts | {"grown_mb": grown, "before_mb": before // 1024, "size_mb": size // 2**20}))
    return 0


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _tell(what: str, **facts: Any) -> None:
    print(json.dumps({"measured": what, **facts}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
