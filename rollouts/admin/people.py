"""Projects, who works in them, what machines and code they let in, and which models of others they may ask."""

from typing import ClassVar

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest

from rollouts.admin.scope import RUN_PAYLOAD, CompletedByKey, ScopedAdmin, StoreAdmin
from rollouts.models import ApiToken, Endpoint, Membership, Project, Trust


class MembershipInline(CompletedByKey, admin.TabularInline):  # type: ignore[type-arg]
    model = Membership
    autocomplete_fields = ("user",)
    extra = 0


@admin.register(Project)
class ProjectAdmin(ScopedAdmin):
    list_display = ("name", "slug", "created_at")
    ordering = ("name",)  # of the names that a form completes, too, which come by the page
    search_fields = ("name", "slug")
    prepopulated_fields: ClassVar = {"slug": ("name",)}
    inlines = (MembershipInline,)


@admin.register(Membership)
class MembershipAdmin(ScopedAdmin):
    list_display = ("user", "project", "role")
    list_filter = ("role", ("project", admin.RelatedOnlyFieldListFilter))
    list_select_related = ("user", "project")
    search_fields = ("user__username", "project__slug")
    autocomplete_fields = ("user", "project")


@admin.register(ApiToken)
class ApiTokenAdmin(StoreAdmin):
    """Tokens are made by `rollyard token create`, which shows them once; here they are seen and revoked."""

    list_display = ("name", "user", "project", "run", "scopes", "created", "expiry")
    list_select_related = ("user", "project", "run")
    defers = RUN_PAYLOAD
    search_fields = ("name", "user__username", "run__key__exact")
    date_hierarchy = "created"
    fields = ("name", "user", "project", "run", "scopes", "created", "expiry")

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return ScopedAdmin.has_delete_permission(self, request, obj)


@admin.register(Trust)
class TrustAdmin(StoreAdmin):
    """Given and withdrawn on the page Trust and by `rollyard trust`; here is the record."""

    list_display = ("kind", "name", "allowed_actor", "allowed_at", "withdrawn_actor", "withdrawn_at")
    list_filter = ("kind",)
    search_fields = ("name__exact",)


@admin.register(Endpoint)
class EndpointAdmin(StoreAdmin):
    """Added and removed by `rollyard endpoints`; here is the record."""

    list_display = ("name", "base_url", "model", "is_for_all", "added_actor", "added_at", "removed_actor", "removed_at")
    search_fields = ("name__exact",)
