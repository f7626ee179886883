"""What every page of the administration site shares: whose rows are shown, and that lists stay cheap."""

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar, cast

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import BaseModelAdmin, IncorrectLookupParameters
from django.contrib.admin.utils import flatten_fieldsets
from django.contrib.admin.views.main import PAGE_VAR, ChangeList
from django.contrib.admin.widgets import AutocompleteSelect
from django.contrib.auth.models import User
from django.core.exceptions import BadRequest, FieldDoesNotExist
from django.core.paginator import Paginator
from django.db import DataError, ProgrammingError, connection, transaction
from django.db.models import ForeignKey, Model, QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property

from rollouts.models import Event, Membership, Project, Role, Run
from rollouts.storable import is_storable

MAX_COUNTED = 10_000
"""Rows that a list counts and pages through; what lies behind is found by search and filters."""
_OF_RUN = "run__project"
RUN_PAYLOAD = ("run__config", "run__config_origins")


class BoundedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts no further than MAX_COUNTED: an exact count of millions of rows takes longer than a page may."""

    @cached_property
    def count(self) -> int:
        rows = cast("QuerySet[Any]", self.object_list)
        return rows.order_by()[:MAX_COUNTED].count()


class BoundedList(ChangeList):
    """Pages through MAX_COUNTED rows; behind them one goes on with those that have lower keys, at the same cost."""

    def older_query(self) -> str:
        """The query of the rows behind the last that are paged through; empty where there are none, or another order
        than by falling keys was chosen."""
        key = self.opts.pk.attname
        is_last = self.result_count >= MAX_COUNTED and self.page_num == self.paginator.num_pages
        if not is_last or list(self.queryset.query.order_by)[:1] not in ([f"-{key}"], ["-pk"]):
            return ""
        last = list(self.result_list)[-1].pk
        return self.get_query_string({f"{key}__lt": last}, remove=[PAGE_VAR])

    def estimate(self) -> int:
        """Rows of the whole table, as the database guesses."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT reltuples FROM pg_class WHERE oid = %s::regclass", [self.opts.db_table])
            return int(cursor.fetchone()[0])


def path_to_project(model: type[Model]) -> str | None:
    """The shortest way over foreign keys from a row to its project, as a lookup; "pk" of a project itself.

    None: it belongs to no project, and so to superusers alone, as do events of no run.
    """
    if model is Project:
        return "pk"
    ways: deque[tuple[type[Model], tuple[str, ...]]] = deque([(model, ())])
    seen: set[type[Model]] = set()
    while ways:
        at, way = ways.popleft()
        seen.add(at)
        for field in at._meta.get_fields():
            is_optional = isinstance(field, ForeignKey) and field.null and (at, field.name) != (Event, "run")
            if not isinstance(field, ForeignKey) or is_optional or field.related_model in seen:
                continue
            if field.related_model is Project:
                return "__".join((*way, field.name))
            ways.append((field.related_model, (*way, field.name)))
    return None


class ChosenByKey(AutocompleteSelect):
    """A form that is shown again has its rows chosen; by what is no key none is, where Django would break."""

    def optgroups(self, name: str, value: Sequence[str], attr: dict[str, Any] | None = None) -> Any:
        try:
            return super().optgroups(name, value, attr)
        except ValueError:
            return super().optgroups(name, [], attr)


class CompletedByKey(BaseModelAdmin):  # type: ignore[type-arg]
    """Forms whose rows are found by completing their names."""

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name in self.get_autocomplete_fields(request):
            kwargs["widget"] = ChosenByKey(db_field, self.admin_site)
        return super().formfield_for_foreignkey(db_field, request, **kwargs)


class FoundByKey(CompletedByKey, admin.ModelAdmin):  # type: ignore[type-arg]
    """What Django takes from an address or a form without a look, and breaks on, names no row: a refusal."""

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Not by what no page shows: asked how it begins, a column that is kept from all is told letter by letter."""
        assert request is not None
        return super().lookup_allowed(lookup, value, request) and self._shows(lookup.split("__")[0], request)

    def _shows(self, name: str, request: HttpRequest) -> bool:
        """Whether a field is on a page of these rows, or makes one of its filters."""
        key, names = self.opts.pk, {name}
        with suppress(FieldDoesNotExist):
            field = self.opts.get_field(name)
            names = {field.name, getattr(field, "attname", field.name)}
        filters = [each[0] if isinstance(each, tuple) else each for each in self.get_list_filter(request)]
        listed = [getattr(each, "parameter_name", each) for each in filters] + [*self.get_list_display(request)]
        listed += [each.lstrip("^=@").split("__")[0] for each in self.get_search_fields(request)]
        if names & {"pk", key.name, key.attname, self.date_hierarchy, *map(str, listed)}:
            return True
        return not names.isdisjoint(flatten_fieldsets(self.get_fieldsets(request)))

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """An empty `_to_field` names no field."""
        return super().get_object(request, object_id, from_field or None)

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Django means to turn away what makes no filter, and misses what follows no year, or the database refuses."""
        try:
            with transaction.atomic():
                return super().get_changelist_instance(request)
        except (OverflowError, ValueError, IndexError, DataError, ProgrammingError) as error:
            raise IncorrectLookupParameters(error) from None

    def response_action(self, request: HttpRequest, queryset: QuerySet[Any], *args: Any, **kwargs: Any) -> Any:
        selected = request.POST.getlist(ACTION_CHECKBOX_NAME)
        try:
            queryset.filter(pk__in=selected)
        except ValueError:
            raise BadRequest("What was selected is no row.") from None
        if not all(map(is_storable, selected)):
            raise BadRequest("What was selected is no row.")
        return super().response_action(request, queryset, *args, **kwargs)


class ScopedAdmin(FoundByKey):
    """Rows of the projects that somebody is a member of; to change them takes an administrator of the project."""

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return scoped(super().get_queryset(request), request)

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return super().has_change_permission(request, obj) and self._administers(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return super().has_delete_permission(request, obj) and self._administers(request, obj)

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Actions on many rows ask for no row's project, so they are for superusers."""
        return super().get_actions(request) if _is_superuser(request) else {}

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        way = path_to_project(db_field.related_model)
        if way is not None and not _is_superuser(request):
            rows = db_field.related_model._default_manager.all()
            kwargs["queryset"] = scoped(rows, request, Role.ADMIN)
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def _administers(self, request: HttpRequest, obj: Model | None) -> bool:
        if obj is None or _is_superuser(request):
            return True
        rows = type(obj)._default_manager.filter(pk=obj.pk)
        return scoped(rows, request, Role.ADMIN).exists()


class StoreAdmin(ScopedAdmin):
    """Rows that only services write: to be looked at."""

    show_full_result_count = False
    paginator = BoundedPaginator
    list_per_page = 50
    show_facets = admin.ShowFacets.NEVER  # a count for each value of each filter, of all rows
    defers: ClassVar[tuple[str, ...]] = ()
    """Payload columns that lists do not load."""

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        queryset = super().get_queryset(request)
        match = request.resolver_match
        is_list = match is not None and (match.url_name or "").endswith("_changelist")
        return queryset.defer(*self.defers) if is_list else queryset

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return BoundedList

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


class CuratedAdmin(StoreAdmin):
    """Rows with which a curator of their project does something."""

    actions: tuple[str, ...] = ()

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """For whoever is a curator somewhere; in whose projects a row is, the act looks itself."""
        return {name: self.get_action(name) for name in self.actions} if self._is_curator(request) else {}

    def _is_curator(self, request: HttpRequest) -> bool:
        memberships = Membership.objects.filter(user=cast(User, request.user), role__in=_roles_from(Role.CURATOR))
        return _is_superuser(request) or memberships.exists()


class OfRunAdmin(StoreAdmin):
    """Rows of a run, found by its key."""

    list_select_related: ClassVar[tuple[str, ...]] = ("run",)
    defers: ClassVar[tuple[str, ...]] = RUN_PAYLOAD
    search_fields: ClassVar[tuple[str, ...]] = ("run__key__exact",)


def scoped(rows: QuerySet[Any], request: HttpRequest, least: Role = Role.VIEWER) -> QuerySet[Any]:
    """Those rows whose project the user has at least this role in; a superuser has every role everywhere."""
    if _is_superuser(request):
        return rows
    way = path_to_project(rows.model)
    if way is None:
        return rows.none()
    memberships = Membership.objects.filter(user=cast(User, request.user), role__in=_roles_from(least))
    projects = list(memberships.values_list("project", flat=True))
    before_run, of_run, _ = way.rpartition(_OF_RUN)
    if not of_run:
        return rows.filter(**{f"{way}__in": projects})
    # As ids: a join with the runs of the memberships is one of whose size the planner knows nothing.
    return rows.filter(
        **{f"{before_run}run__in": list(Run.objects.filter(project__in=projects).values_list("pk", flat=True))}
    )


def _roles_from(least: Role) -> list[Role]:
    return [role for role in Role if role.includes(least)]


def _is_superuser(request: HttpRequest) -> bool:
    return isinstance(request.user, User) and request.user.is_superuser
