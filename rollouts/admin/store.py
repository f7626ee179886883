"""The store, to be looked at: runs, groups, batches, versions, replicas, events."""

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.db.models.functions import Length
from django.http import HttpRequest

from rollouts.admin.scope import RUN_PAYLOAD, OfRunAdmin, ScopedAdmin, StoreAdmin
from rollouts.models import (
    Address,
    AgentSession,
    Attempt,
    Batch,
    BatchItem,
    Checkpoint,
    Delivery,
    DriverLoad,
    EnvironmentClient,
    EnvironmentSource,
    Evaluation,
    Event,
    GroupTokens,
    KeptPool,
    KnownProblem,
    Lease,
    MetricPoint,
    Placement,
    PolicyVersion,
    Replay,
    Replica,
    ReplicaLoad,
    Rollout,
    Run,
    RunEnvironment,
    TokenValues,
    Trial,
    WorkerJob,
)
from rollouts.models import Model as RegisteredModel
from rollouts.services.transitions import TRANSITIONS

_OWN_PROJECTS = ("project", admin.RelatedOnlyFieldListFilter)


@admin.register(Run)
class RunAdmin(StoreAdmin):
    list_display = ("key", "name", "kind", "project", "state", "state_reason", "next_step", "max_steps", "created_at")
    list_filter = ("state", "kind", _OWN_PROJECTS)
    list_select_related = ("project",)
    defers = ("config", "config_origins")
    search_fields = ("key__exact", "name")
    date_hierarchy = "created_at"


@admin.register(Address)
class AddressAdmin(OfRunAdmin):
    """The keys are shown on the pages of the runs, to operators."""

    list_display = fields = readonly_fields = ("run", "owner", "expires_at", "used_at", "resets_on_get")
    list_select_related = ("run", "owner")
    ordering = ("-run_id",)


@admin.register(RunEnvironment)
class RunEnvironmentAdmin(StoreAdmin):
    list_display = ("name", "run", "weight", "cursor", "problems")
    list_select_related = ("run",)
    defers = (*RUN_PAYLOAD, "args")
    search_fields = ("run__key__exact", "name__exact")


@admin.register(KnownProblem)
class KnownProblemAdmin(StoreAdmin):
    list_display = ("id", "environment", "problem_index", "pool", "solve_rate", "groups", "turn")
    list_filter = ("pool",)
    list_select_related = ("environment__run",)
    defers = (*(f"environment__{name}" for name in RUN_PAYLOAD), "environment__args")
    search_fields = ("environment__run__key__exact",)
    ordering = ("-id",)


@admin.register(Lease)
class LeaseAdmin(OfRunAdmin):
    list_display = ("group_id", "run", "holder", "claimed_at", "expires_at")
    search_fields = ("run__key__exact", "holder__exact")


@admin.register(DriverLoad)
class DriverLoadAdmin(OfRunAdmin):
    list_display = ("run", "holder", "reported_at", "is_draining", "sessions", "queued", "asking", "scoring", "tokens")
    search_fields = ("run__key__exact", "holder__exact")


@admin.register(KeptPool)
class KeptPoolAdmin(StoreAdmin):
    list_display = ("name", "minimum", "maximum", "complaint")
    search_fields = ("name__exact",)
    ordering = ("name",)


@admin.register(WorkerJob)
class WorkerJobAdmin(StoreAdmin):
    list_display = ("number", "pool", "state", "node", "due_at", "why", "is_draining")
    search_fields = ("pool__exact", "number__exact", "node__exact")
    ordering = ("-token",)


@admin.register(Placement)
class PlacementAdmin(OfRunAdmin):
    list_display = ("host", "kind", "unit", "run", "promised_at", "released_at")
    list_filter = ("kind",)
    search_fields = ("run__key__exact", "host__exact")


@admin.register(Rollout)
class RolloutAdmin(StoreAdmin):
    list_display = (
        *(
            "id",
            "group_id",
            "index",
            "seat",
            "reward",
            "stop_reason",
            "error_kind",
            "token_count",
            "trained_token_count",
        ),
        *("first_policy_version", "last_policy_version", "replica", "worker", "generation_s"),
    )
    list_filter = ("stop_reason", "error_kind")
    defers = ("messages", "earlier_branches", "tools", "metrics", "error", "spans")
    search_fields = ("group__key__exact",)
    ordering = ("-id",)


@admin.register(GroupTokens)
class GroupTokensAdmin(StoreAdmin):
    """The arrays themselves are never loaded: their sizes come from the database."""

    list_display = fields = readonly_fields = ("group_id", "ids_bytes", "mask_bytes", "logprobs_bytes")
    search_fields = ("group__key__exact",)
    ordering = ("-group_id",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        sizes = {
            "_ids_bytes": Length("token_ids"),
            "_mask_bytes": Length("loss_mask"),
            "_logprobs_bytes": Length("inference_logprobs"),
        }
        rows: QuerySet[Any] = ScopedAdmin.get_queryset(self, request).only("group_id").annotate(**sizes)
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
    search_fields = ("run__key__exact", "sha256__exact")
    ordering = ("-id",)


@admin.register(BatchItem)
class BatchItemAdmin(StoreAdmin):
    list_display = ("id", "batch_id", "position", "group_id", "replay")
    defers = ("advantages",)
    search_fields = ("batch__run__key__exact", "group__key__exact")
    ordering = ("-id",)


@admin.register(TokenValues)
class TokenValuesAdmin(StoreAdmin):
    """The arrays themselves are never loaded; they are looked at on the pages of the run."""

    list_display = fields = readonly_fields = ("id", "batch_id", "rollout_id")
    search_fields = ("batch__run__key__exact",)
    ordering = ("-id",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = ScopedAdmin.get_queryset(self, request).only("batch_id", "rollout_id")
        return rows


@admin.register(Replay)
class ReplayAdmin(StoreAdmin):
    list_display = ("id", "run", "source", "first_step", "last_step", "taken", "actor", "reason", "created_at")
    list_select_related = ("run", "source")
    defers = (*RUN_PAYLOAD, "source__config", "source__config_origins")
    search_fields = ("run__key__exact", "source__key__exact")
    ordering = ("-id",)


@admin.register(Attempt)
class AttemptAdmin(OfRunAdmin):
    list_display = (
        *("id", "run", "number", "state", "batch_size", "starting_step"),
        *("opened_at", "started_at", "closed_at"),
    )
    list_filter = ("state",)
    ordering = ("-id",)


@admin.register(AgentSession)
class AgentSessionAdmin(OfRunAdmin):
    """What one left is looked at in its group."""

    list_display = fields = readonly_fields = (
        *("id", "name", "run", "group_key", "group_size", "environment", "owner", "actor"),
        *("opened_at", "expires_at", "finished_at", "grouped_at"),
    )
    list_select_related = ("run", "owner")
    defers = (*OfRunAdmin.defers, "problem", "record")
    search_fields = ("run__key__exact", "group_key__exact")
    ordering = ("-id",)


@admin.register(EnvironmentClient)
class EnvironmentClientAdmin(StoreAdmin):
    list_display = (
        *("id", "attempt_id", "index", "wandb_name", "weight", "group_size", "min_batch_allocation"),
        *("state", "seen_at", "lapsed_at"),
    )
    list_filter = ("state",)
    search_fields = ("attempt__run__key__exact", "wandb_name")
    ordering = ("-id",)


@admin.register(Delivery)
class DeliveryAdmin(StoreAdmin):
    list_display = ("batch_id", "attempt_id", "taken_at", "expires_at", "sent_at", "abandoned_at")
    search_fields = ("batch__run__key__exact",)
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
    search_fields = ("name__exact", "run__key__exact")


@admin.register(Checkpoint)
class CheckpointAdmin(OfRunAdmin):
    list_display = ("id", "run", "step", "state", "epoch", "size_bytes", "path", "created_at")
    list_filter = ("state",)
    ordering = ("-id",)


@admin.register(Evaluation)
class EvaluationAdmin(StoreAdmin):
    list_display = ("id", "run", "environment", "version", "measured", "state", "problems", "cursor", "reward_mean")
    list_filter = ("state",)
    list_select_related = ("run", "environment")
    defers = (*RUN_PAYLOAD, "environment__args")
    search_fields = ("run__key__exact",)


@admin.register(Replica)
class ReplicaAdmin(OfRunAdmin):
    list_display = (
        *("name", "run", "host", "gpus", "cores", "state", "state_reason", "loaded_version"),
        *("answered_at", "exit_code", "created_at"),
    )
    list_filter = ("state", "kind")
    search_fields = ("run__key__exact", "token__exact")


@admin.register(ReplicaLoad)
class ReplicaLoadAdmin(StoreAdmin):
    list_display = (
        *("replica_id", "heartbeat_at", "reported_at", "running", "waiting", "cache_share", "tokens"),
        *("tokens_per_s", "idle_since", "idle_s"),
    )
    search_fields = ("replica__run__key__exact",)
    ordering = ("-replica_id",)


@admin.register(EnvironmentSource)
class EnvironmentSourceAdmin(StoreAdmin):
    """Of the whole installation, and so for superusers."""

    list_display = ("name", "version", "sha256", "first_seen_at")
    defers = ("files",)
    search_fields = ("name__exact",)


@admin.register(Trial)
class TrialAdmin(OfRunAdmin):
    list_display = ("key", "run", "name", "problem_index", "state", "state_reason", "created_by", "created_at")
    list_filter = ("state",)
    list_select_related = ("run", "created_by")
    defers = (*RUN_PAYLOAD, "record")
    search_fields = ("key__exact", "run__key__exact", "name__exact")


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
    search_fields = ("run__key__exact", "key__exact")
    ordering = ("-id",)
