"""Scored groups on the administration site: a list that people read, and the conversation on the page of one."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils.text import Truncator

from rollouts.admin import filters
from rollouts.admin.curation import GroupActs
from rollouts.admin.scope import RUN_PAYLOAD
from rollouts.models import Rollout, ScoredGroup

_SHOWN = 32
"""Rollouts of a group whose messages are shown; the group's own page has all."""
_READ = ("run", "environment", "problem", "now", "why", "reward", "scored", "policy", "withheld", "settled_at")
"""What the page of one begins with; the columns of the row are folded below it."""


@admin.register(ScoredGroup)
class ScoredGroupAdmin(GroupActs):
    list_display = (
        *("problem", "run", "environment", "now", "why", "reward", "scored", "policy", "withheld", "token_count"),
        *("settled_at", "short_key"),
    )
    list_display_links = ("problem",)
    list_filter = (
        *("state", "withheld", "purpose", filters.EnvironmentFilter, filters.RewardFilter, filters.SignalFilter),
        *(filters.VerdictFilter, filters.ErrorFilter, filters.LagFilter),
    )
    list_select_related = ("run", "environment")
    defers = (*RUN_PAYLOAD, "environment__args")
    search_fields = ("run__key__exact", "key__exact", "problem_key__exact")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        rest = [name for name in self.get_fields(request, obj) if name not in _READ]
        return ((None, {"fields": _READ}), ("As stored", {"fields": rest, "classes": ("collapse",)}))

    @admin.display(description="problem")
    def problem(self, row: ScoredGroup) -> str:
        return Truncator(row.problem_key or f"#{row.problem_index}").chars(60)

    @admin.display(description="state", ordering="state")
    def now(self, row: ScoredGroup) -> str:
        return row.state

    @admin.display(description="why")
    def why(self, row: ScoredGroup) -> str:
        return str(row.state_reason or "")

    @admin.display(description="reward", ordering="reward_mean")
    def reward(self, row: ScoredGroup) -> str:
        if row.reward_mean is None:
            return ""
        by_people = " by people" if row.given_rewards is not None else ""
        return f"{row.reward_mean:.3g} ± {row.reward_std or 0:.2g}{by_people}"

    @admin.display(description="rollouts")
    def scored(self, row: ScoredGroup) -> str:
        failed = row.rollout_count - (row.rollout_count if row.scored_count is None else row.scored_count)
        return f"{row.rollout_count}, {failed} failed" if failed else str(row.rollout_count)

    @admin.display(description="policy")
    def policy(self, row: ScoredGroup) -> str:
        if row.min_policy_version is None:
            return ""
        newest = f"–{row.max_policy_version}" if row.max_policy_version != row.min_policy_version else ""
        return f"v{row.min_policy_version}{newest}"

    @admin.display(description="key")
    def short_key(self, row: ScoredGroup) -> str:
        return row.key[:8]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """With what was said: of a group that the user may not see there is none, and no page either."""
        row = self.get_object(request, object_id)
        rollouts = Rollout.objects.filter(group=row).select_related("group").order_by("index")[:_SHOWN] if row else []
        extra = (extra_context or {}) | {"conversation": rollouts}
        return super().change_view(request, object_id, form_url, extra)
