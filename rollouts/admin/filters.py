"""What the list of groups is filtered by beside columns with few values. Each is one condition on an indexed walk."""

from typing import Any

from django.contrib import admin
from django.db.models import Exists, ExpressionWrapper, F, IntegerField, OuterRef, Q, QuerySet
from django.http import HttpRequest

from rollouts.admin.scope import scoped
from rollouts.models import ROUNDING, BatchItem, LabelVerdict, RunEnvironment, ScoredGroup
from rollouts.selectors import curation

_MOST_NAMES = 50
Rows = QuerySet[ScoredGroup]


class _ByWord(admin.SimpleListFilter):
    """A choice of words, each with its condition."""

    conditions: dict[str, Q]

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(word, word) for word in self.conditions]

    def queryset(self, request: HttpRequest, queryset: Rows) -> Rows:
        condition = self.conditions.get(self.value() or "")
        return queryset if condition is None else queryset.filter(condition)


class RewardFilter(_ByWord):
    title = "mean reward"
    parameter_name = "reward"
    conditions = {
        "below 0": Q(reward_mean__lt=0),
        "0": Q(reward_mean=0),
        "above 0, below .25": Q(reward_mean__gt=0, reward_mean__lt=0.25),
        ".25 to .5": Q(reward_mean__gte=0.25, reward_mean__lt=0.5),
        ".5 to .75": Q(reward_mean__gte=0.5, reward_mean__lt=0.75),
        ".75 to 1": Q(reward_mean__gte=0.75, reward_mean__lt=1),
        "1 or more": Q(reward_mean__gte=1),
        "none": Q(reward_mean__isnull=True),
    }


class SignalFilter(_ByWord):
    title = "rewards"
    parameter_name = "signal"
    conditions = {
        "all equal": Q(reward_std__lt=ROUNDING),
        "differ": Q(reward_std__gte=ROUNDING),
    }


class ErrorFilter(_ByWord):
    title = "errors"
    parameter_name = "errors"
    conditions = {
        "some rollout failed": Q(scored_count__lt=F("rollout_count")),
        "none failed": Q(scored_count=F("rollout_count")),
    }


class VerdictFilter(admin.SimpleListFilter):
    """By what counts of what people said, of the group or of one of its rollouts, and may be read."""

    title = "people say"
    parameter_name = "verdict"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("accept", "accept"), ("reject", "reject"), ("nothing", "nothing")]

    def queryset(self, request: HttpRequest, queryset: Rows) -> Rows:
        counting = curation.readable(curation.counting()).filter(group=OuterRef("pk"))
        match self.value():
            case "accept" | "reject" as verdict:
                return queryset.filter(Exists(counting.filter(verdict=verdict)))
            case "nothing":
                return queryset.filter(~Exists(counting.exclude(verdict=LabelVerdict.SKIP)))
        return queryset


class EnvironmentFilter(admin.SimpleListFilter):
    """By the name that the environment has in its run, of the runs that the user may see."""

    title = "environment"
    parameter_name = "environment"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        names = scoped(RunEnvironment.objects.all(), request).order_by("name").values_list("name", flat=True)
        return [(name, name) for name in names.distinct()[:_MOST_NAMES]]

    def queryset(self, request: HttpRequest, queryset: Rows) -> Rows:
        if not (name := self.value()):
            return queryset
        # As ids: the planner then walks the groups, newest first, instead of joining all of them.
        environments = list(RunEnvironment.objects.filter(name=name).values_list("pk", flat=True))
        return queryset.filter(environment__in=environments)


class LagFilter(admin.SimpleListFilter):
    """By how many steps behind its batch the oldest policy version of a group was."""

    title = "lag"
    parameter_name = "lag"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("0", "none"), ("1", "1 step"), ("2", "2 or more")]

    def queryset(self, request: HttpRequest, queryset: Rows) -> Rows:
        if self.value() not in ("0", "1", "2"):
            return queryset
        lag = ExpressionWrapper(F("batch__step") - OuterRef("min_policy_version"), output_field=IntegerField())
        items = BatchItem.objects.filter(group=OuterRef("pk"), replay=0).annotate(lag=lag)
        wanted = {"0": Q(lag__lte=0), "1": Q(lag=1), "2": Q(lag__gte=2)}[self.value() or "0"]
        return queryset.filter(Exists(items.filter(wanted)))
