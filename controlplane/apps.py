"""Django's record of the wiring application."""

from django.apps import AppConfig


class ControlplaneConfig(AppConfig):
    """Settings, URLs, the command line and login links."""

    name = "controlplane"
    verbose_name = "Control plane"

    def ready(self) -> None:
        """Register the system checks and what axes must forget; make ours the Celery application of every process."""
        from controlplane import celery, checks  # noqa: F401
        from controlplane.web import lockout  # noqa: F401
