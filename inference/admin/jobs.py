from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.shortcuts import redirect
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from inference.admin import display, steering
from inference.admin.filters import AcceptedFilter, ErrorFilter, ModelFilter, WorkerFilter
from inference.admin.readonly import ReadOnlyAdmin
from inference.models import Job, Webhook, Worker
from inference.store import rows

END_OF_ID = re.compile(r"…?([0-9A-Fa-f]{8,12})")
MOST_CANCELLED = 50_000  # of one action: a page must answer
MOST_RETRIED = 1000  # each is submitted alone; the same jobs chosen again would run again


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    list_display = (
        "short_id", "model", "state", "code", "accepted", "wait", "run", "batched", "size", "priority", "attempts",
        "ran_on",
    )  # fmt: skip
    list_filter = ("status", ModelFilter, AcceptedFilter, "priority", WorkerFilter, ErrorFilter)
    list_per_page = 50
    search_fields = ("id",)  # shows the box; get_search_results does the work
    search_help_text = "A job's id or its end, as the list shows it, or a request's id (X-Request-Id) in full"
    actions = ("cancel_jobs", "retry_jobs")
    change_list_template = "inference/job_list.html"
    change_form_template = "inference/job.html"
    fieldsets = (
        (None, {"fields": ("id", "model", "state", "error", "priority", "size", "length", "parts_link")}),
        ("Data", {"fields": ("inputs_shown", "parameters_shown", "output_shown")}),
        ("Run", {"fields": ("batch_link", "attempts", "recoveries", "ran_on", "device")}),
        ("Times", {"fields": ("created", "sent", "wait", "started", "run", "finished", "expires")}),
        ("Client", {"fields": ("owner", "bulk_link", "webhook_link", "request_id_shown", "idempotency_key_shown")}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        name = Worker.objects.filter(pk=OuterRef("worker")).values("name")[:1]
        jobs: QuerySet[Job] = super().get_queryset(request)
        return jobs.defer("inputs", "output").annotate(worker_name=Subquery(name))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Job], search_term: str
    ) -> tuple[QuerySet[Job], bool]:
        term = search_term.strip()
        if not term:  # parts are found by what they belong to, ran in, and their ids
            return queryset if request.GET.keys() & {"whole", "batch", "worker"} else queryset.filter(whole=None), False
        if end := END_OF_ID.fullmatch(term):
            return queryset.filter(pk__endswith=end[1].lower()), False
        try:
            return queryset.filter(pk=UUID(term)), False
        except ValueError:
            return queryset.filter(request_id=term, whole=None), False

    # Columns and facts

    @admin.display(description="id")
    def short_id(self, job: Job) -> SafeString:
        """The end of the id: the beginning is the time, and alike in neighbours."""
        return format_html('<code title="{}">…{}</code>', job.pk, job.pk.hex[-8:])

    state = display.fact("status", "status", display.badge)
    code = display.fact("error", "error_code")
    batched = display.fact("batch", "batch_size")
    wait = display.fact("wait", "queue_wait", display.duration)
    run = display.fact("run", "run_time", display.duration)
    accepted = display.fact("accepted", "created_at", display.ago)
    created = display.fact("accepted", "created_at", display.at)
    started = display.fact("started", "started_at", display.at)
    finished = display.fact("finished", "finished_at", display.at)
    expires = display.fact("expires", "expires_at", display.at)
    parameters_shown = display.fact("parameters", "parameters", display.pretty_json)
    output_shown = display.fact("output", "output", display.pretty_json)
    request_id_shown = display.fact("request id", "request_id", display.visible)
    idempotency_key_shown = display.fact("idempotency key", "idempotency_key", display.visible)

    @admin.display(description="worker")
    def ran_on(self, job: Job) -> SafeString | str:
        if job.worker is None:
            return display.NONE
        name = getattr(job, "worker_name", None)
        if name is None:  # its row is removed some time after its end
            return f"…{job.worker.hex[-8:]}"
        url = reverse("admin:inference_worker_change", args=[job.worker])
        return format_html('<a href="{}">{}</a>', url, display.visible(name))

    @admin.display(description="batch")
    def batch_link(self, job: Job) -> SafeString | str:
        if job.batch is None:
            return display.NONE
        url = reverse("admin:inference_job_changelist")
        return format_html('{} items: <a href="{}?batch={}">its jobs</a>', job.batch_size or "?", url, job.batch)

    @admin.display(description="error")
    def error(self, job: Job) -> SafeString | str:
        if not job.error_code:
            return display.NONE
        return format_html("<strong>{}</strong>{}", job.error_code, display.block(job.error_detail))

    @admin.display(description="message sent")
    def sent(self, job: Job) -> str:
        return display.NONE if job.parts or job.published_at is None else display.at(job.published_at)

    @admin.display(description="inputs")
    def inputs_shown(self, job: Job) -> SafeString:
        return display.pretty_json(rows.inputs_of_parts(job.pk) if job.parts else job.inputs)

    @admin.display(description="parts")
    def parts_link(self, job: Job) -> SafeString | str:
        if job.whole:
            url = reverse("admin:inference_job_change", args=[job.whole])
            return format_html('from input {} of <a href="{}">this list</a>', job.place, url)
        if not job.parts:
            return display.NONE
        url = reverse("admin:inference_job_changelist")
        return format_html('<a href="{}?whole={}">{} parts</a>', url, job.pk, job.parts)

    @admin.display(description="bulk")
    def bulk_link(self, job: Job) -> SafeString | str:
        if job.bulk_id is None:
            return display.NONE
        url = reverse("admin:inference_job_changelist")
        return format_html('number {} of <a href="{}?bulk={}">these</a>', job.bulk_index, url, job.bulk_id)

    @admin.display(description="webhook")
    def webhook_link(self, job: Job) -> SafeString | str:
        webhook = Webhook.objects.filter(job=job).first()
        if webhook is None:
            return display.NONE
        url = reverse("admin:inference_webhook_change", args=[webhook.pk])
        return format_html('<a href="{}">{}</a>', url, webhook.state)

    # Steering

    def has_steer_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("inference.change_job")

    @admin.action(description="Cancel the selected jobs", permissions=["steer"])
    def cancel_jobs(self, request: HttpRequest, queryset: QuerySet[Job]) -> None:
        """In order of age, so that what is left is what came last."""
        oldest = queryset.order_by("pk")
        count = oldest.count()
        self.tell(request, steering.cancel(self.chunks(request, oldest, "Cancelled.")))
        if count > MOST_CANCELLED:
            text = f"{count - MOST_CANCELLED:,} of {count:,} jobs are left as they were: choose them and cancel again."
            self.message_user(request, text, messages.WARNING)

    @admin.action(description="Run the selected jobs again, as new jobs", permissions=["steer"])
    def retry_jobs(self, request: HttpRequest, queryset: QuerySet[Job]) -> None:
        if (count := queryset.count()) > MOST_RETRIED:
            text = f"None of {count:,} jobs was run again: choose at most {MOST_RETRIED:,} at once, by the filters."
            self.message_user(request, text, messages.ERROR)
            return
        oldest = queryset.order_by("pk")
        ids = [job_id for chunk in self.chunks(request, oldest, "Submitted again as a new job.") for job_id in chunk]
        self.tell(request, steering.retry(ids))

    def chunks(self, request: HttpRequest, oldest: QuerySet[Job], message: str) -> Iterator[list[UUID]]:
        """The ids of one action's jobs, with a line in the history of each."""
        jobs = oldest.only("pk", "model")
        last, done = UUID(int=0), 0
        while (chunk := list(jobs.filter(pk__gt=last)[: rows.MOST])) and done < MOST_CANCELLED:
            LogEntry.objects.log_actions(str(request.user.pk), chunk, CHANGE, message)
            yield [job.pk for job in chunk]
            last, done = chunk[-1].pk, done + len(chunk)

    def tell(self, request: HttpRequest, report: Iterable[steering.Line]) -> None:
        for level, text in report:
            self.message_user(request, text, level)

    def get_urls(self) -> list[URLPattern]:
        steer = self.admin_site.admin_view(self.steer_one)
        return [path("<uuid:pk>/steer/", steer, name="inference_job_steer"), *super().get_urls()]

    def steer_one(self, request: HttpRequest, pk: UUID) -> HttpResponse:
        """The buttons of one job's page."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not self.has_steer_permission(request):
            raise PermissionDenied
        action = {"cancel": self.cancel_jobs, "retry": self.retry_jobs}.get(request.POST.get("action", ""))
        if action:
            action(request, self.get_queryset(request).filter(pk=pk))
        return redirect("admin:inference_job_change", pk)
