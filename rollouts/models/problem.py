"""Problems of an environment that is played by difficulty pools."""

from django.db import models
from django.db.models import Q

from rollouts.models.run import RunEnvironment
from rollouts.pools import Pool


class KnownProblem(models.Model):
    """A problem that was handed out, and how often it was solved. Its row exists where the environment has pools.

    Written by ``services.groups.problems``: its turn when it is handed out, all else when a group of it is scored.
    """

    environment = models.ForeignKey(
        RunEnvironment, on_delete=models.CASCADE, related_name="known_problems", db_index=False
    )
    problem_index = models.PositiveBigIntegerField()
    pool = models.CharField(max_length=8, choices=[(pool.value, pool.value) for pool in Pool], default=Pool.NEW)
    solve_rate = models.FloatField(null=True)
    """A running mean over its groups, the newest weighing most; None exactly while it is new. Of the mean reward where
    pools go by that."""
    groups = models.PositiveIntegerField(default=0)
    """Scored groups of it."""
    turn = models.PositiveBigIntegerField()
    """Of the environment, in which it was last handed out."""

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["environment", "problem_index"], name="known_problem_once"),
            models.CheckConstraint(condition=Q(pool__in=list(Pool)), name="known_problem_pool_known"),
            models.CheckConstraint(
                condition=Q(pool=Pool.NEW, solve_rate__isnull=True, groups=0)
                | (~Q(pool=Pool.NEW) & Q(solve_rate__isnull=False, solve_rate__gte=0, solve_rate__lte=1, groups__gt=0)),
                name="known_problem_new_until_scored",
            ),
        ]
        indexes = [
            # Each pool is a queue: the problem that has waited longest is next.
            models.Index(fields=["environment", "pool", "turn"], name="known_problem_queue"),
        ]

    def __str__(self) -> str:
        return f"{self.environment_id}/{self.problem_index}"
