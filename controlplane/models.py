"""The only row of the wiring: a login link that was handed out and not yet used."""

from django.conf import settings
from django.db import models


class LoginLink(models.Model):
    """A link that signs in once. `login.issue` writes it; `login.redeem` deletes it, whoever deletes it may enter."""

    digest = models.CharField(primary_key=True, max_length=64)
    """Hex SHA-256 of the secret in the link: the table alone opens no door."""
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
    expires_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"login link of {self.user} until {self.expires_at:%Y-%m-%d %H:%M}"
