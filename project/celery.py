"""The Celery application: `celery -A project worker`."""

import os

from celery import Celery

from inference.worker import setup

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")

app = Celery("project")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["inference.worker"])
setup.install(app)
