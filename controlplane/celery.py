"""The Celery application. Messages are doorbells: ids only, JSON only, safe to lose or to double."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

app = Celery("rollyard")
# For every thread of every process that rings: a shared task would otherwise go to a broker nobody configured.
app.set_default()
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
app.steps["worker"].add("workers.tasks:Polling")
