"""The operator's pages: jobs, workers, and a dashboard on the index."""

from django.contrib import admin

from inference.admin.acts import ActAdmin
from inference.admin.jobs import JobAdmin
from inference.admin.models import ModelsAdmin
from inference.admin.webhooks import WebhookAdmin
from inference.admin.workers import WorkerAdmin

__all__ = ["ActAdmin", "JobAdmin", "ModelsAdmin", "WebhookAdmin", "WorkerAdmin"]

admin.site.site_header = "Inference"
admin.site.site_title = "Inference"
admin.site.enable_nav_sidebar = False  # the width is the tables'
admin.site.site_url = "/v1/docs"
admin.site.index_title = "Now"
admin.site.index_template = "inference/index.html"
