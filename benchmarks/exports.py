"""How fast and in how much memory a version of a dataset is exported, and what survives kills.

    python -m benchmarks.exports --rollouts 1000000            # JSONL, Parquet, five kills, 10,000 labels more
    python -m benchmarks.exports --rollouts 200000 --home /tmp/store   # keeps the store, and uses it again

A store of its own is filled by SQL: groups of eight rollouts, conversations of four messages and about 1 kB each. The
peak is that of the exporting process; what it has before its first row is told beside it.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

GROUP = 8
_CHILD = "--child"
_LABELS = 10_000
_DEATHS = 5
_FILL = """
INSERT INTO rollouts_scoredgroup (
    run_id, environment_id, environment_version, key, purpose, problem_key, state, state_at, reason_code, reason_params,
    lease_count, created_at, settled_at, rollout_count, token_count, reward_mean, reward_std, scored_count,
    solved_count, min_policy_version, max_policy_version, withheld
)
SELECT %(run)s, %(environment)s, '1', 'g' || n, 'train', 'p' || n, 'ready', now(), '', '{}', 1, now(), now(),
       8, 8 * 200, 0.5, 0.5, 8, 4, 0, 0, ''
FROM generate_series(1, %(groups)s) AS n;

INSERT INTO rollouts_rollout (
    group_id, index, seat, reward, metrics, messages, stop_reason, error_kind, token_count, trained_token_count,
    dispatch_policy_version, first_policy_version, last_policy_version, replica, worker, generation_s
)
SELECT scored.id, i, '', i / 8.0, '{}',
       jsonb_build_array(
           jsonb_build_object('role', 'system', 'content', 'You are a calculator. Think, then answer.'),
           jsonb_build_object('role', 'user', 'content', 'What is ' || scored.id || ' plus ' || i || '?'),
           jsonb_build_object('role', 'assistant', 'content', said.text, 'reasoning_content', left(said.text, 200)),
           jsonb_build_object('role', 'user', 'content', 'Are you sure?'),
           jsonb_build_object('role', 'assistant', 'content', 'Yes: ' || scored.id + i)
       ), 'stop', '', 200, 120, 0, 0, 0, 'r', 'w', 1
FROM rollouts_scoredgroup AS scored
CROSS JOIN generate_series(0, 7) AS i
CROSS JOIN LATERAL (
    SELECT string_agg(md5(scored.id::text || i || k), ' ') AS text FROM generate_series(1, 20) AS k
) AS said
WHERE scored.run_id = %(run)s;

INSERT INTO rollouts_grouptokens (group_id, lengths, token_ids, loss_mask, inference_logprobs)
SELECT id, %(lengths)s, %(ids)s, %(mask)s, %(ids)s FROM rollouts_scoredgroup WHERE run_id = %(run)s;
"""


def main() -> int:
    """Measure, and print a line of JSON for each figure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exports")
    parser.add_argument("--rollouts", type=int, default=1_000_000)
    parser.add_argument("--home", type=Path, help="keep the store here")
    parser.add_argument(_CHILD, nargs=3, metavar=("VERSION", "FORM", "PATH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return _export(*options.child)
    with _store(options.home) as root:
        version = _filled(options.rollouts)
        _tell("store", rollouts=options.rollouts, version=version)
        whole = root / "whole.jsonl"
        _tell("jsonl", **_run(version, "sft", whole))
        _tell("parquet", **_run(version, "sft", root / "whole.parquet"))
        killed = root / "killed.jsonl"
        _tell("killed", deaths=_kill(version, killed), same_bytes=_hash(killed) == _hash(whole))
        _label()
        again = root / "again.jsonl"
        _run(version, "sft", again)
        _tell("after labels", labels=_LABELS, same_bytes=_hash(again) == _hash(whole))
    return 0


@contextmanager
def _store(kept: Path | None) -> Iterator[Path]:
    """A store of its own, migrated, in a directory for files."""
    with tempfile.TemporaryDirectory(prefix="rollyard-exports-") as directory:
        root = Path(directory)
        root.chmod(0o711)  # PostgreSQL, which is not root, passes through it
        os.environ["ROLLYARD_HOME"] = str(kept or root / "home")
        os.environ["ROLLYARD_SECRET_KEY"] = "a key for a benchmark, which signs nothing of value"
        os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
        for name in ("DATABASE_URL", "REDIS_URL"):
            os.environ.pop(name, None)
        import django

        django.setup()
        from django.conf import settings
        from django.core.management import call_command

        from controlplane.up import embedded

        settings.HOME.create()
        program = embedded.prepare_postgres(settings.HOME)
        with embedded.serving(settings.HOME, program, embedded.postgres_answers):
            call_command("migrate", verbosity=0)
            yield root


def _filled(rollouts: int) -> int:
    """The id of a version of every rollout of a run that has so many."""
    import numpy as np
    from django.db import connection

    from rollouts.models import DatasetVersion, Run
    from rollouts.services.datasets import making
    from rollouts.services.datasets.choosing import Recipe
    from rollouts.services.runs import life, projects
    from trainers.config import resolve

    name = f"set-{rollouts}"
    if (known := DatasetVersion.objects.filter(dataset__name=name).first()) is not None:
        return known.pk
    project, user = projects.ensure_default(), projects.ensure_admin()
    run = life.create(project=project, user=user, resolved=resolve("reverse-text-rl"), actor="benchmark")
    mask = np.zeros((GROUP, 200), np.uint8)
    mask[:, 60:170] = 1
    mask[:, 180:190] = 1
    values: dict[str, Any] = {
        "run": run.pk,
        "environment": run.environments.get().pk,
        "groups": rollouts // GROUP,
        "lengths": np.full(GROUP, 200, "<u4").tobytes(),
        "ids": np.zeros(GROUP * 200, "<u4").tobytes(),
        "mask": mask.tobytes(),
    }
    with connection.cursor() as cursor:
        for statement in _FILL.split(";\n"):
            if statement.strip():
                cursor.execute(statement, values)
    began = time.perf_counter()
    recipe = Recipe(runs=[Run.objects.get(pk=run.pk).key])
    version = making.make(project, name=name, form="examples", recipe=recipe, actor="benchmark")
    _tell("made", seconds=round(time.perf_counter() - began, 1), members=version.member_count)
    return version.pk


def _command(version: int, form: str, path: Path) -> list[str]:
    return [sys.executable, "-m", "benchmarks.exports", _CHILD, str(version), form, str(path)]


def _run(version: int, form: str, path: Path) -> dict[str, Any]:
    done = subprocess.run(_command(version, form, path), check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _kill(version: int, path: Path) -> int:
    """Export with kills at random moments, and to the end."""
    dice, deaths = random.Random(1), 0
    while True:
        process = subprocess.Popen(_command(version, "sft", path), stdout=subprocess.DEVNULL)
        journal = path.with_name(f".{path.name}.journal")
        before = journal.read_bytes() if journal.exists() else b""
        if deaths < _DEATHS:
            while process.poll() is None and (not journal.exists() or journal.read_bytes() == before):
                time.sleep(0.05)
            time.sleep(dice.uniform(0.0, 3.0))
            process.send_signal(signal.SIGKILL)
        if process.wait() == 0:
            return deaths
        deaths += 1


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


def _label() -> None:
    from django.contrib.auth.models import User

    from rollouts.models import ScoredGroup
    from rollouts.services.curation import labels

    user = User.objects.get(username="admin")
    for group in ScoredGroup.objects.order_by("id")[:_LABELS]:
        labels.say(group, user=user, actor="user:admin", verdict="reject")


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _tell(what: str, **facts: Any) -> None:
    print(json.dumps({"measured": what, **facts}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
