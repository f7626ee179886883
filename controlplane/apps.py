"""Django's record of the wiring application."""

from django.apps import AppConfig


class ControlplaneConfig(AppConfig):
    """Settings, URLs, the command line and login links."""

    name = "controlplane"
    verbose_name = "Control plane"

    def ready(self) -> None:
        """Register the system checks and what axes must forget; make ours the Celery application of every process; and
        hand the store what it runs programs in."""
        from controlplane import celery, checks  # noqa: F401
        from controlplane.web import lockout  # noqa: F401
        from rollouts.services import model_checks
        from workers.launchers import confinement

        model_checks.confined = confinement.run_alone
