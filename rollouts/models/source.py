"""What the code of an environment was, version by version, as drivers found it when they first played it."""

from django.db import models
from django.db.models.functions import Now


class EnvironmentSource(models.Model):
    """Insert-only. Two rows of one version: somebody changed the code and did not raise it."""

    name = models.CharField(max_length=200)
    version = models.CharField(max_length=100)
    sha256 = models.CharField(max_length=64)
    """Of the files with their names, as ``environments.sources.digest``."""
    files = models.JSONField()
    """Path -> text."""
    first_seen_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["name", "version", "sha256"], name="environment_source_once"),
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.version} ({self.sha256[:8]})"
