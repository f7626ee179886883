"""The Celery application. Messages are doorbells: ids only, JSON only, safe to lose or to double."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

app = Celery("rollyard")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
