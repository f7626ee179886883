"""The administration site: accounts, and what else is no project's."""

from typing import Any

from axes.admin import AccessAttemptAdmin, AccessFailureLogAdmin, AccessLogAdmin
from axes.models import AccessAttempt, AccessFailureLog, AccessLog
from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from django.http import HttpRequest

from rollouts.admin.scope import FoundByKey


class ForSuperusers(FoundByKey):
    """Rows of the whole installation. Permissions of Django's do not suffice: staff is staff of some projects."""

    def has_module_permission(self, request: HttpRequest) -> bool:
        return _is_superuser(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return _is_superuser(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return _is_superuser(request) and super().has_add_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return _is_superuser(request)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return _is_superuser(request)


class AccountAdmin(ForSuperusers, UserAdmin):  # type: ignore[type-arg]
    """Accounts are closed (`is_active`), not deleted: what their users did names them. Whoever changes accounts could
    become any of them."""

    search_fields = ("username",)
    """Staff completes them, and is not to find out whose an address or a name is."""

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        # Who adds a member chooses among names.
        match = request.resolver_match
        return _is_superuser(request) or (match is not None and match.url_name == "autocomplete")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def _is_superuser(request: HttpRequest) -> bool:
    return isinstance(request.user, User) and request.user.is_superuser


# Groups hand out permissions; failed sign-ins name everybody, and who deletes them lets guessers go on.
_THEIRS: dict[Any, Any] = {
    Group: GroupAdmin,
    AccessAttempt: AccessAttemptAdmin,
    AccessFailureLog: AccessFailureLogAdmin,
    AccessLog: AccessLogAdmin,
}
admin.site.unregister([User, *_THEIRS])
admin.site.register(User, AccountAdmin)
for _model, _admin in _THEIRS.items():
    admin.site.register(_model, type(_admin.__name__, (ForSuperusers, _admin), {}))
