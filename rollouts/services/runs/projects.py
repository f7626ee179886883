"""The default project and its first admin."""

from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.db import transaction

from rollouts.models import Membership, Project, Role
from rollouts.models.access import DEFAULT_PROJECT

ADMIN_USERNAME = "admin"


def ensure_default() -> Project:
    """The project that runs go to when none is named."""
    project, _ = Project.objects.get_or_create(slug=DEFAULT_PROJECT, defaults={"name": "Default"})
    return project


def ensure_admin() -> User:
    """A superuser without a password, admin of the default project; it signs in by a one-time link."""
    with transaction.atomic():
        user, created = get_user_model().objects.get_or_create(
            username=ADMIN_USERNAME, defaults={"is_staff": True, "is_superuser": True}
        )
        if created:
            user.set_unusable_password()
            user.save(update_fields=["password"])
        Membership.objects.get_or_create(project=ensure_default(), user=user, defaults={"role": Role.ADMIN})
    return user
