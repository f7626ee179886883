"""Which application answers which path."""

from importlib.util import find_spec

from django.contrib import admin
from django.urls import include, path

from controlplane import health, login

urlpatterns = [
    path("healthz", health.alive, name="healthz"),
    path("readyz", health.ready, name="readyz"),
    path("login/link/<str:token>", login.redeem, name="login-link"),
    path("admin/", admin.site.urls),
]
urlpatterns += [
    path(prefix, include(module))
    for prefix, module in (("api/v1/", "rollouts.api.urls"), ("", "frontend.urls"))
    if find_spec(module)
]
