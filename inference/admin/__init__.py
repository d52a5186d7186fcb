"""The operator's pages: jobs, workers, and a dashboard on the index."""

from django.contrib import admin

from inference.admin.pages.acts import ActAdmin
from inference.admin.pages.jobs import JobAdmin
from inference.admin.pages.models import ModelsAdmin
from inference.admin.pages.webhooks import WebhookAdmin
from inference.admin.pages.workers import WorkerAdmin

__all__ = ["ActAdmin", "JobAdmin", "ModelsAdmin", "WebhookAdmin", "WorkerAdmin"]

admin.site.site_header = "Inference"
admin.site.site_title = "Inference"
admin.site.enable_nav_sidebar = False  # tables need the whole width
admin.site.site_url = None  # the head of each page has a link of its own, to the documentation of the API
admin.site.index_title = "Overview"
admin.site.index_template = "inference/index.html"
