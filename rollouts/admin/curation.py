"""What people say of groups and do with them, on the administration site: lists to look at, and acts on many groups."""

from typing import cast

from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.http import urlencode

from rollouts.admin.scope import MAX_COUNTED, CuratedAdmin, OfRunAdmin, StoreAdmin, scoped
from rollouts.errors import ControlPlaneError
from rollouts.models import (
    Act,
    ActItem,
    Guideline,
    Label,
    LabelQueue,
    QueueItem,
    QueueTurn,
    Role,
    Run,
    ScoredGroup,
    Verb,
)
from rollouts.selectors import curation
from rollouts.services.curation import acts
from rollouts.services.curation.filters import MOST_NAMED


class GroupActs(CuratedAdmin):
    """What is done with groups: by the same services as anywhere else."""

    actions = ("reject_groups", "exclude_groups", "restore_groups", "queue_groups", "add_to_dataset")

    @admin.action(description="Reject from training")
    def reject_groups(self, request: HttpRequest, groups: QuerySet[ScoredGroup]) -> None:
        """See `Verb.REJECT`."""
        self._act(request, Verb.REJECT, groups)

    @admin.action(description="Exclude from exports")
    def exclude_groups(self, request: HttpRequest, groups: QuerySet[ScoredGroup]) -> None:
        """See `Verb.EXCLUDE`."""
        self._act(request, Verb.EXCLUDE, groups)

    @admin.action(description="Restore")
    def restore_groups(self, request: HttpRequest, groups: QuerySet[ScoredGroup]) -> None:
        """See `Verb.RESTORE`."""
        self._act(request, Verb.RESTORE, groups)

    @admin.action(description="Make a queue of them")
    def queue_groups(self, request: HttpRequest, groups: QuerySet[ScoredGroup]) -> HttpResponse | None:
        """To the form that makes one, in which they are named."""
        return self._named_in(request, groups, "queues", run="run")

    @admin.action(description="Add to a dataset")
    def add_to_dataset(self, request: HttpRequest, groups: QuerySet[ScoredGroup]) -> HttpResponse | None:
        """To the form that makes a version, in which they are named."""
        return self._named_in(request, groups, "datasets", run="runs")

    def _named_in(
        self, request: HttpRequest, groups: QuerySet[ScoredGroup], page: str, *, run: str
    ) -> HttpResponse | None:
        """To a form with the keys of groups of one run, or a message that says what is asked for."""
        rows = scoped(groups, request, Role.CURATOR).order_by("pk")
        chosen = rows.values_list("run__key", "run__project__slug", "key")[: MOST_NAMED + 1]
        keys = [key for _, _, key in chosen]
        is_whole = len(keys) == groups.order_by()[: MOST_NAMED + 1].count()
        is_whole = is_whole and not any("," in key for key in keys)  # commas part them in the form
        if not is_whole or len({run_key for run_key, _, _ in chosen}) != 1 or len(keys) > MOST_NAMED:
            told = f"Choose up to {MOST_NAMED} groups of one run, in a project in which you are a curator."
            self.message_user(request, f"{told} More are described by what they have in common.", messages.ERROR)
            return None
        [run_key, project, _] = chosen[0]
        query = urlencode({run: run_key, "project": project, "groups": ",".join(keys)})
        return HttpResponseRedirect(f"{reverse(page)}?{query}#make")

    def _act(self, request: HttpRequest, verb: Verb, groups: QuerySet[ScoredGroup]) -> None:
        """One act for each run of the groups, of which there are no more than a list counts: more were not seen."""
        user, chosen = cast(User, request.user), groups.order_by()[: MAX_COUNTED + 1].count()
        if chosen > MAX_COUNTED:
            told = f"Nothing is done: these are more than {MAX_COUNTED} groups. Narrow it by filters, or use a queue."
            self.message_user(request, told, messages.ERROR)
            return
        rows = scoped(groups, request, Role.CURATOR).order_by().values_list("run_id", "pk")
        ids: dict[int, list[int]] = {}
        for run_id, group_id in rows:
            ids.setdefault(run_id, []).append(group_id)
        changed = 0
        for run in Run.objects.filter(pk__in=ids):
            try:
                act = acts.perform(run, verb, ids[run.pk], user=user, actor=f"user:{user.get_username()}")
            except ControlPlaneError as refused:
                self.message_user(request, refused.message, messages.ERROR)
                continue
            changed += act.items.count()
        told = f"{verb.name.capitalize()}: {changed} of {chosen} groups changed."
        self.message_user(request, told, messages.SUCCESS if changed else messages.WARNING)


@admin.register(Label)
class LabelAdmin(OfRunAdmin):
    """What may be read of what people said."""

    list_display = ("at", "run", "group_id", "rollout_id", "actor", "verdict", "preference", "tags", "score", "note")
    list_filter = ("verdict", "preference")
    search_fields = ("run__key__exact", "group__key__exact", "actor__exact")
    ordering = ("-id",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Label]:
        return curation.readable(super().get_queryset(request))


@admin.register(Act)
class ActAdmin(OfRunAdmin):
    list_display = ("key", "at", "run", "verb", "actor", "note", "undoes")
    list_filter = ("verb",)
    list_select_related = ("run", "undoes")
    search_fields = ("run__key__exact", "key__exact", "actor__exact")
    ordering = ("-id",)


@admin.register(ActItem)
class ActItemAdmin(StoreAdmin):
    list_display = ("id", "act_id", "group_id", "withheld_before")
    search_fields = ("act__key__exact", "group__key__exact")
    ordering = ("-id",)


@admin.register(LabelQueue)
class LabelQueueAdmin(StoreAdmin):
    list_display = (
        "name",
        "project",
        "unit",
        "source",
        "words_per_item",
        "is_blind",
        "on_reject",
        "actor",
        "created_at",
    )
    list_filter = ("unit", "is_blind")
    list_select_related = ("project", "source")
    search_fields = ("key__exact", "name")
    ordering = ("-id",)


@admin.register(Guideline)
class GuidelineAdmin(StoreAdmin):
    list_display = ("queue", "version", "actor", "at")
    list_select_related = ("queue",)
    search_fields = ("queue__key__exact",)
    ordering = ("-id",)


@admin.register(QueueItem)
class QueueItemAdmin(StoreAdmin):
    list_display = ("id", "queue", "group_id", "rollout_id", "other_id", "words", "is_open")
    list_filter = ("is_open",)
    list_select_related = ("queue",)
    search_fields = ("queue__key__exact", "group__key__exact")
    ordering = ("-id",)


@admin.register(QueueTurn)
class QueueTurnAdmin(StoreAdmin):
    """Names words by number: those of a blind queue are shown nowhere before it is closed."""

    exclude = ("label",)
    readonly_fields = ("label_id",)
    list_display = ("id", "item_id", "person", "taken_at", "expires_at", "label_id")
    list_select_related = ("person",)
    search_fields = ("item__queue__key__exact",)
    ordering = ("-id",)
