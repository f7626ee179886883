"""The administration site: accounts."""

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import User
from django.http import HttpRequest

admin.site.unregister(User)


@admin.register(User)
class AccountAdmin(UserAdmin):  # type: ignore[type-arg]
    """Accounts are closed (`is_active`), not deleted: what their users did names them."""

    def has_delete_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        return False
