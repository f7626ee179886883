"""Datasets on the administration site: to be looked at, and a version to be exported."""

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.http import urlencode

from rollouts.admin.scope import CuratedAdmin, StoreAdmin, scoped
from rollouts.models import Dataset, DatasetMember, DatasetVersion, Export, Role, RunDataset


@admin.register(Dataset)
class DatasetAdmin(StoreAdmin):
    list_display = ("name", "project", "licence", "actor", "created_at")
    list_select_related = ("project",)
    search_fields = ("key__exact", "name__exact")
    ordering = ("-id",)


@admin.register(DatasetVersion)
class DatasetVersionAdmin(CuratedAdmin):
    actions = ("export_version",)
    list_display = ("dataset", "version", "form", "member_count", "digest", "actor", "at")
    list_filter = ("form",)
    list_select_related = ("dataset",)
    defers = ("statistics",)
    search_fields = ("dataset__key__exact", "dataset__name__exact", "digest__exact")
    ordering = ("-id",)

    @admin.action(description="Export as files")
    def export_version(self, request: HttpRequest, versions: QuerySet[DatasetVersion]) -> HttpResponse | None:
        """To the form that asks for it."""
        if versions.count() != 1 or not scoped(versions, request, Role.CURATOR).exists():
            self.message_user(request, "Choose one version, of a project in which you are a curator.", messages.ERROR)
            return None
        query = urlencode({"version": versions.get().pk})
        return HttpResponseRedirect(f"{reverse('exports')}?{query}#make")


@admin.register(DatasetMember)
class DatasetMemberAdmin(StoreAdmin):
    list_display = ("id", "version_id", "position", "split", "group_id", "rollout_id", "other_id", "is_wanted")
    list_filter = ("split", "is_wanted")
    defers = ("row",)
    search_fields = ("group__key__exact", "version__dataset__key__exact")
    ordering = ("-id",)


@admin.register(Export)
class ExportAdmin(StoreAdmin):
    list_display = (
        "key",
        "created_at",
        "version_id",
        "form",
        "file_format",
        "state",
        "members_done",
        "size_bytes",
        "actor",
    )
    list_filter = ("state", "form")
    defers = ("manifest",)
    search_fields = ("key__exact", "version__dataset__name__exact")
    ordering = ("-id",)


@admin.register(RunDataset)
class RunDatasetAdmin(StoreAdmin):
    list_display = ("id", "run_id", "version_id", "split", "row_count", "sha256")
    list_filter = ("split",)
    search_fields = ("run__key__exact", "version__dataset__name__exact")
    ordering = ("-id",)
