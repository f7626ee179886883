"""The administration site: people, projects and tokens are managed here, the store is only looked at.

Lists stay cheap however large the store grows: they never load payloads (configs, messages, token arrays), never count
beyond MAX_COUNTED rows, and filter by columns with an index or few values. Search finds by key, not by substring.
"""

from typing import Any, ClassVar, cast

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.db.models.functions import Length
from django.http import HttpRequest
from django.utils.functional import cached_property

from rollouts.models import (
    ApiToken,
    Attempt,
    Batch,
    BatchItem,
    Checkpoint,
    Delivery,
    EnvironmentClient,
    Evaluation,
    Event,
    GroupTokens,
    Lease,
    Membership,
    MetricPoint,
    PolicyVersion,
    Project,
    Replay,
    Replica,
    Rollout,
    Run,
    RunEnvironment,
    ScoredGroup,
    TokenValues,
)
from rollouts.models import Model as RegisteredModel
from rollouts.services.transitions import TRANSITIONS

MAX_COUNTED = 10_000
"""Rows that a list counts and pages through; what lies behind is found by search and filters."""
RUN_PAYLOAD = ("run__config", "run__config_origins")


class BoundedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts no further than MAX_COUNTED: an exact count of millions of rows takes longer than a page may."""

    @cached_property
    def count(self) -> int:
        rows = cast("QuerySet[Any]", self.object_list)
        return rows.order_by()[:MAX_COUNTED].count()


class StoreAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Rows that only services write: to be looked at."""

    show_full_result_count = False
    paginator = BoundedPaginator
    list_per_page = 50
    defers: ClassVar[tuple[str, ...]] = ()
    """Payload columns that lists do not load."""

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        queryset = super().get_queryset(request)
        match = request.resolver_match
        is_list = match is not None and (match.url_name or "").endswith("_changelist")
        return queryset.defer(*self.defers) if is_list else queryset

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


class OfRunAdmin(StoreAdmin):
    """Rows of a run, found by its key."""

    list_select_related: ClassVar[tuple[str, ...]] = ("run",)
    defers = RUN_PAYLOAD
    search_fields: ClassVar[tuple[str, ...]] = ("=run__key",)


class MembershipInline(admin.TabularInline):  # type: ignore[type-arg]
    model = Membership
    autocomplete_fields = ("user",)
    extra = 0


@admin.register(Project)
class ProjectAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ("name", "slug", "created_at")
    search_fields = ("name", "slug")
    prepopulated_fields: ClassVar = {"slug": ("name",)}
    inlines = (MembershipInline,)


@admin.register(Membership)
class MembershipAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ("user", "project", "role")
    list_filter = ("role", "project")
    list_select_related = ("user", "project")
    search_fields = ("user__username", "project__slug")
    autocomplete_fields = ("user", "project")


@admin.register(ApiToken)
class ApiTokenAdmin(StoreAdmin):
    """Tokens are made by `rollyard token create`, which shows them once; here they are seen and revoked."""

    list_display = ("name", "user", "project", "run", "scopes", "created", "expiry")
    list_select_related = ("user", "project", "run")
    defers = RUN_PAYLOAD
    search_fields = ("name", "user__username", "=run__key")
    date_hierarchy = "created"
    fields = ("name", "user", "project", "run", "scopes", "created", "expiry")

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return bool(admin.ModelAdmin.has_delete_permission(self, request, obj))


@admin.register(Run)
class RunAdmin(StoreAdmin):
    list_display = ("key", "name", "kind", "project", "state", "state_reason", "next_step", "max_steps", "created_at")
    list_filter = ("state", "kind", "project")
    list_select_related = ("project",)
    defers = ("config", "config_origins")
    search_fields = ("=key", "name")
    date_hierarchy = "created_at"


@admin.register(RunEnvironment)
class RunEnvironmentAdmin(StoreAdmin):
    list_display = ("name", "run", "weight", "cursor")
    list_select_related = ("run",)
    defers = (*RUN_PAYLOAD, "args")
    search_fields = ("=run__key", "=name")


@admin.register(ScoredGroup)
class ScoredGroupAdmin(StoreAdmin):
    list_display = (
        *("id", "key", "run", "environment", "environment_version", "purpose", "problem_key", "state", "state_reason"),
        *("rollout_count", "reward_mean", "min_policy_version", "settled_at"),
    )
    list_filter = ("state", "purpose")
    list_select_related = ("run", "environment")
    defers = (*RUN_PAYLOAD, "environment__args")
    search_fields = ("=run__key", "=key")


@admin.register(Lease)
class LeaseAdmin(OfRunAdmin):
    list_display = ("group_id", "run", "holder", "claimed_at", "expires_at")
    search_fields = ("=run__key", "=holder")


@admin.register(Rollout)
class RolloutAdmin(StoreAdmin):
    list_display = (
        *("id", "group_id", "index", "reward", "stop_reason", "error_kind", "token_count", "trained_token_count"),
        *("first_policy_version", "last_policy_version", "replica", "worker", "generation_s"),
    )
    list_filter = ("stop_reason", "error_kind")
    defers = ("messages", "metrics", "error")
    search_fields = ("=group__key",)
    ordering = ("-id",)


@admin.register(GroupTokens)
class GroupTokensAdmin(StoreAdmin):
    """The arrays themselves are never loaded: their sizes come from the database."""

    list_display = fields = readonly_fields = ("group_id", "ids_bytes", "mask_bytes", "logprobs_bytes")
    search_fields = ("=group__key",)
    ordering = ("-group_id",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        sizes = {
            "_ids_bytes": Length("token_ids"),
            "_mask_bytes": Length("loss_mask"),
            "_logprobs_bytes": Length("inference_logprobs"),
        }
        rows: QuerySet[Any] = admin.ModelAdmin.get_queryset(self, request).only("group_id").annotate(**sizes)
        return rows

    @admin.display(description="token ids, bytes")
    def ids_bytes(self, row: Any) -> int:
        return int(row._ids_bytes)

    @admin.display(description="loss mask, bytes")
    def mask_bytes(self, row: Any) -> int:
        return int(row._mask_bytes)

    @admin.display(description="inference logprobs, bytes")
    def logprobs_bytes(self, row: Any) -> int:
        return int(row._logprobs_bytes)


@admin.register(Batch)
class BatchAdmin(OfRunAdmin):
    list_display = ("id", "run", "step", "state", "epoch", "token_count", "size_bytes", "deliveries", "formed_at")
    list_filter = ("state",)
    search_fields = ("=run__key", "=sha256")
    ordering = ("-id",)


@admin.register(BatchItem)
class BatchItemAdmin(StoreAdmin):
    list_display = ("id", "batch_id", "position", "group_id", "replay")
    defers = ("advantages",)
    search_fields = ("=batch__run__key", "=group__key")
    ordering = ("-id",)


@admin.register(TokenValues)
class TokenValuesAdmin(StoreAdmin):
    """The arrays themselves are never loaded; they are looked at on the pages of the run."""

    list_display = fields = readonly_fields = ("id", "batch_id", "rollout_id")
    search_fields = ("=batch__run__key",)
    ordering = ("-id",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = admin.ModelAdmin.get_queryset(self, request).only("batch_id", "rollout_id")
        return rows


@admin.register(Replay)
class ReplayAdmin(StoreAdmin):
    list_display = ("id", "run", "source", "first_step", "last_step", "taken", "actor", "reason", "created_at")
    list_select_related = ("run", "source")
    defers = (*RUN_PAYLOAD, "source__config", "source__config_origins")
    search_fields = ("=run__key", "=source__key")
    ordering = ("-id",)


@admin.register(Attempt)
class AttemptAdmin(OfRunAdmin):
    list_display = (
        "id",
        "run",
        "number",
        "state",
        "batch_size",
        "starting_step",
        "opened_at",
        "started_at",
        "closed_at",
    )
    list_filter = ("state",)
    ordering = ("-id",)


@admin.register(EnvironmentClient)
class EnvironmentClientAdmin(StoreAdmin):
    list_display = (
        *("id", "attempt_id", "index", "wandb_name", "weight", "group_size", "min_batch_allocation"),
        *("state", "seen_at", "lapsed_at"),
    )
    list_filter = ("state",)
    search_fields = ("=attempt__run__key", "wandb_name")
    ordering = ("-id",)


@admin.register(Delivery)
class DeliveryAdmin(StoreAdmin):
    list_display = ("batch_id", "attempt_id", "taken_at", "expires_at", "sent_at", "abandoned_at")
    search_fields = ("=batch__run__key",)
    ordering = ("-batch_id",)


@admin.register(PolicyVersion)
class PolicyVersionAdmin(OfRunAdmin):
    list_display = ("id", "run", "version", "state", "epoch", "size_bytes", "path", "created_at", "published_at")
    list_filter = ("state",)
    ordering = ("-id",)


@admin.register(RegisteredModel)
class RegisteredModelAdmin(StoreAdmin):
    list_display = ("name", "project", "origin", "run", "step", "source", "architecture", "parameters", "created_at")
    list_filter = ("origin",)
    list_select_related = ("project", "run")
    defers = RUN_PAYLOAD
    search_fields = ("=name", "=run__key")


@admin.register(Checkpoint)
class CheckpointAdmin(OfRunAdmin):
    list_display = ("id", "run", "step", "state", "epoch", "size_bytes", "path", "created_at")
    list_filter = ("state",)
    ordering = ("-id",)


@admin.register(Evaluation)
class EvaluationAdmin(StoreAdmin):
    list_display = ("id", "run", "environment", "version", "state", "problems", "cursor", "reward_mean", "created_at")
    list_filter = ("state",)
    list_select_related = ("run", "environment")
    defers = (*RUN_PAYLOAD, "environment__args")
    search_fields = ("=run__key",)


@admin.register(Replica)
class ReplicaAdmin(OfRunAdmin):
    list_display = ("name", "run", "state", "state_reason", "loaded_version", "answered_at", "exit_code", "created_at")
    list_filter = ("state", "kind")
    search_fields = ("=run__key", "=token")


class ObjectKindFilter(admin.SimpleListFilter):
    """Kinds from the state machines: asking the log for its distinct values would read all of it."""

    title = "kind of object"
    parameter_name = "object_kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(str(model._meta.model_name), str(model._meta.verbose_name)) for model in TRANSITIONS]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset if self.value() is None else queryset.filter(object_kind=self.value())


@admin.register(Event)
class EventAdmin(OfRunAdmin):
    list_display = ("id", "at", "run", "object_kind", "object_id", "from_state", "to_state", "actor", "reason")
    list_filter = (ObjectKindFilter,)


@admin.register(MetricPoint)
class MetricPointAdmin(OfRunAdmin):
    list_display = ("id", "run", "key", "step", "value", "recorded_at")
    search_fields = ("=run__key", "=key")
    ordering = ("-id",)
