"""The ground of one measurement: a home, PostgreSQL with room for many connections, Redis, a run."""

import dataclasses
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

ENVIRONMENT = "reverse_text"


class Ground(NamedTuple):
    """What the measurement stands on."""

    root: Path
    postgres: int
    """Process id of the postmaster."""
    redis: int


@contextmanager
def opened(max_connections: int) -> Iterator[Ground]:
    """Both servers with an empty, migrated store; everything ends, and is removed, with the block."""
    with tempfile.TemporaryDirectory(prefix="rollyard-scale-", ignore_cleanup_errors=True) as directory:
        root = Path(directory)
        root.chmod(0o711)  # PostgreSQL, which is not root, passes through it
        os.environ["ROLLYARD_HOME"] = str(root / "home")
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
        wider = dataclasses.replace(program, argv=(*program.argv, "-c", f"max_connections={max_connections}"))
        redis = embedded.prepare_redis(settings.HOME)
        with (
            embedded.serving(settings.HOME, wider, embedded.postgres_answers) as postgres,
            embedded.serving(settings.HOME, redis, embedded.redis_answers) as valkey,
        ):
            call_command("migrate", verbosity=0)
            yield Ground(root, postgres.pid, valkey.pid)


def begin_run(root: Path, keys: Mapping[str, Any]) -> Any:
    """A run whose first version is live, and which a reconciler looks after from here."""
    from rollouts.services.runs import life, policies, projects
    from trainers.config import resolve

    model = root / "model"
    write_weights(model)
    values = {
        "kind": "rl",
        "name": "scale",
        "model.path": str(model),
        "environments": [{"name": ENVIRONMENT}],
        "trainer.keep_weights": 2,
        **keys,
    }
    run = life.create(
        project=projects.ensure_default(),
        user=projects.ensure_admin(),
        resolved=resolve(overrides=values, environ={}),
        actor="benchmark",
    )
    run = life.start(run)
    policies.published(policies.register_initial(run, path=str(model)))
    run.refresh_from_db()
    return run


def write_weights(directory: Path) -> None:
    """Files that look like weights, to who only looks."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(b"")
