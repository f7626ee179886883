"""Which application answers which path."""

from django.contrib import admin
from django.urls import include, path

from controlplane.web import health, login

handler500 = "controlplane.web.unavailable.broken"
urlpatterns = [
    path("healthz", health.alive, name="healthz"),
    path("readyz", health.ready, name="readyz"),
    path("login/link/<str:token>", login.redeem, name="login-link"),
    path("admin/", admin.site.urls),
    path("api/v1/", include("rollouts.doors.native.urls")),
    path("", include("frontend.urls")),
]
