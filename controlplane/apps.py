"""Django's record of the wiring application."""

import gc
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess

from django.apps import AppConfig
from django.contrib.staticfiles import apps as staticfiles


class ControlplaneConfig(AppConfig):
    """Settings, URLs, the command line and login links."""

    name = "controlplane"
    verbose_name = "Control plane"

    def ready(self) -> None:
        """Register the system checks, what axes must forget and when a session begins; make ours the Celery application
        of every process; and hand the store what it runs programs in, and what tells whether runs may read a path."""
        from controlplane import celery, checks  # noqa: F401
        from controlplane.web import lockout, signed_in  # noqa: F401
        from rollouts.services import model_checks

        model_checks.confined = confined
        model_checks.closed_to_runs = closed_to_runs
        gc.freeze()  # what is loaded stays
        gc.enable()


class StaticFilesConfig(staticfiles.StaticFilesConfig):
    """Django's record of the static files, without what no page asks for: another reader of the API's description, and
    pages of the API. Every home would hash and compress them first: 1.3 s, and half of the space."""

    default = False
    ignore_patterns = [*staticfiles.StaticFilesConfig.ignore_patterns, "redoc", "rest_framework"]


def confined(
    argv: Sequence[str], directory: Path, timeout_s: float, environ: Mapping[str, str]
) -> "CompletedProcess[str] | None":
    """As `confinement.run_alone`, which is imported when it is needed: pages and the API load no workers."""
    from workers.launchers import confinement

    return confinement.run_alone(argv, directory, timeout_s, environ)


def closed_to_runs(path: Path) -> str:
    """As `confinement.closed_to_runs`, with the places that are opened to runs."""
    from workers.fleet import lifecycle
    from workers.launchers import confinement

    return confinement.closed_to_runs(path, lifecycle.own_places())
