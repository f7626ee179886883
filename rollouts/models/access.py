"""Who may do what: projects, roles in them, and scoped tokens for machines."""

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q
from knox.models import AbstractAuthToken

from rollouts.storable import UNNAMABLE, is_name


class Role(models.TextChoices):
    """Ordered: each role may do what those before it may."""

    VIEWER = "viewer", "Viewer: sees everything of the project."
    CURATOR = "curator", "Curator: also labels and rejects groups."
    OPERATOR = "operator", "Operator: also launches and stops runs."
    ADMIN = "admin", "Admin: also manages members and tokens."

    def includes(self, other: "Role") -> bool:
        """Whether a member with this role may do what ``other`` may."""
        order = list(Role)
        return order.index(self) >= order.index(other)


DEFAULT_PROJECT = "default"
"""The slug of the project that is there from the beginning, and that commands mean."""


class Project(models.Model):
    """The unit of access: every run belongs to one, every query is scoped by it."""

    slug = models.SlugField(unique=True)
    name = models.CharField(max_length=100)
    created_at = models.DateTimeField(auto_now_add=True)
    members = models.ManyToManyField(settings.AUTH_USER_MODEL, through="Membership", related_name="projects")

    def __str__(self) -> str:
        return self.name

    @property
    def command_option(self) -> str:
        """What a command is told that is about this project: nothing where it is the one that commands mean."""
        return "" if self.slug == DEFAULT_PROJECT else f" --project {self.slug}"

    def clean(self) -> None:
        """Raise ValidationError for a name that hides something."""
        if not is_name(self.name):
            raise ValidationError({"name": f"It {UNNAMABLE}."})


class Membership(models.Model):
    """A user's role in a project."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=16, choices=Role.choices, default=Role.VIEWER)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "user"], name="membership_once_per_project"),
            models.CheckConstraint(condition=Q(role__in=Role.values), name="membership_role_known"),
        ]

    def __str__(self) -> str:
        return f"{self.user} is {self.role} of {self.project}"


class Scope(models.TextChoices):
    """What a token may do. A token never gives more than its user's role."""

    READ = "read", "Read runs, metrics and events."
    CURATE = "curate", "Label groups; reject, exclude and restore them."
    LAUNCH = "launch", "Launch and stop runs."
    SUBMIT = "submit", "Submit scored groups; claim and settle work."
    PLAY = "play", "Open sessions, through which programs play the live policy."
    TRAIN = (
        "train",
        "Register as a trainer, fetch batches, acknowledge steps, announce weights.",
    )


class ApiToken(AbstractAuthToken):
    """A machine's credential: hashed, expiring, scoped to a project and perhaps to one run."""

    name = models.CharField(max_length=100)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="tokens")
    run = models.ForeignKey(
        "rollouts.Run",
        null=True,
        blank=True,
        on_delete=models.CASCADE,
        related_name="tokens",
    )
    scopes = ArrayField(models.CharField(max_length=16, choices=Scope.choices))

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(scopes__contained_by=Scope.values),
                name="token_scopes_known",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(self.scopes)})"
