"""Django's record of the wiring application."""

from django.apps import AppConfig


class ControlplaneConfig(AppConfig):
    """Settings, URLs, the command line and login links."""

    name = "controlplane"
    verbose_name = "Control plane"

    def ready(self) -> None:
        """Register the system checks, and make ours the Celery application of every process that loads Django."""
        from controlplane import celery, checks  # noqa: F401
