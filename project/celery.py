"""The Celery application: `celery -A project worker`."""

import os

from celery import Celery

from inference.worker.celery_worker import setup

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
# Celery would run Django's checks in each process of a worker, import all views for that, and discard the results.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

app = Celery("project")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["inference.worker.celery_worker"])
setup.install_options_and_steps(app)
