from __future__ import annotations

import datetime
import logging
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.auth import get_user_model
from django.core import signing
from django.core.exceptions import PermissionDenied
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, redirect
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from inference.admin import api_key_hook, job_actions, job_lookups
from inference.admin.filters import (
    AcceptedFilter,
    ErrorFilter,
    KeyFilter,
    ModelFilter,
    OwnerFilter,
    PriorityFilter,
    StatusFilter,
    WorkerFilter,
)
from inference.admin.pages import acts as act_pages
from inference.admin.pages import batches, job_timeline
from inference.admin.read_only_admin import ReadOnlyAdmin
from inference.admin.rendering import display, export, job_media, job_payload
from inference.fields.ids import make_row_id
from inference.models import Act, ActKind, Job, Status, Webhook, Worker
from inference.telemetry.plurals import format_count
from inference.upkeep import acts

logger = logging.getLogger(__name__)

SALT = "inference.act"
CHANGE_MESSAGES = {  # the outcome is in the rows of the job and of the new job: it may have ended before, or be refused
    ActKind.CANCEL: "Requested to cancel it.",
    ActKind.RETRY: "Requested to retry it as a new job.",
    ActKind.RETRY_ALONE: "Requested to retry it as a new job that runs alone.",
}
CONFIRMED_WITHIN = datetime.timedelta(minutes=15)


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    about = "A job is one accepted request to a model, from POST /v1/jobs or POST /v1/models/NAME."
    list_display = (
        "short_id", "model", "state", "code", "owner_name", "accepted", "wait", "run", "batched", "items", "priority",
        "attempts", "ran_on",
    )  # fmt: skip
    list_filter = (
        StatusFilter, ModelFilter, AcceptedFilter, PriorityFilter, WorkerFilter, OwnerFilter, KeyFilter, ErrorFilter,
    )  # fmt: skip
    list_per_page = list_max_show_all = 50
    search_fields = ("id",)  # shows the box; get_search_results does the work
    search_help_text = (
        "Enter in full: an owner, the name or the listed beginning of an API key, an error code, an X-Request-Id, an"
        " Idempotency-Key, or the id of a job, bulk or batch. The end of a job's id is enough. Any other term is"
        f" searched in the error texts and in the first {job_lookups.BEGINNING} characters of the inputs."
    )
    actions = ("cancel_jobs", "retry_jobs", "retry_jobs_alone")
    change_list_template = "inference/job_list.html"
    change_form_template = "inference/job.html"
    fieldsets = (
        ("Job", {"fields": ("id", "model", "priority", "items", "length", "parts_link")}),
        ("Run", {"fields": ("batch_link", "attempts", "recoveries", "ran_on", "device")}),
        ("Times", {"fields": ("created", "message_sent_at", "wait", "started", "run", "finished", "expires")}),
        ("Client", {
            "fields": (
                "owner_link", "api_key", "bulk_link", "webhook_link", "request_id_shown", "idempotency_key_shown",
            ),
        }),
    )  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        users = get_user_model()
        worker = Worker.objects.filter(pk=OuterRef("worker")).values("name")[:1]
        owner = users.objects.filter(pk=OuterRef("owner")).values(users.USERNAME_FIELD)[:1]
        key = api_key_hook.issued(request.user).filter(start=OuterRef("key_start")).values("name")[:1]
        jobs: QuerySet[Job] = super().get_queryset(request)
        return jobs.defer("inputs", "output").annotate(
            worker_name=Subquery(worker), owner_username=Subquery(owner), key_name=Subquery(key)
        )

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Job], search_term: str
    ) -> tuple[QuerySet[Job], bool]:
        found = job_lookups.search_jobs(search_term, set(request.GET), queryset, request.user)
        request.search_limit = found.limit  # type: ignore[attr-defined]  # shown on the page
        return queryset.filter(**found.lookups), False

    # Columns and facts

    @admin.display(description="id")
    def short_id(self, job: Job) -> SafeString:
        """Return the end of the id, as its beginning is the time and alike in neighbours."""
        return format_html('<code title="{}">…{}</code>', job.pk, job.pk.hex[-8:])

    state = display.make_column("status", "status", display.render_badge)
    code = display.make_column("error", "error_code")
    owner_name = display.make_column("owner", "owner_username", display.escape_text)
    items = display.make_column("items", "size")
    wait = display.make_column("wait", "queue_wait", display.format_duration)
    run = display.make_column("run", "run_time", display.format_duration)
    accepted = display.make_column("accepted", "created_at", display.render_relative_time)
    created = display.make_column("accepted", "created_at", display.format_moment)
    started = display.make_column("started", "started_at", display.format_moment)
    finished = display.make_column("finished", "finished_at", display.format_moment)
    expires = display.make_column("expires", "expires_at", display.format_moment)
    request_id_shown = display.make_column("request id", "request_id", display.escape_text)
    idempotency_key_shown = display.make_column("idempotency key", "idempotency_key", display.escape_text)

    @admin.display(description="owner")
    def owner_link(self, job: Any) -> SafeString | str:
        if job.owner_id is None:
            return display.NONE
        url = reverse("admin:inference_job_changelist", query={"owner": job.owner_id})
        return format_html('{}, <a href="{}">all jobs</a>', display.escape_text(job.owner_username), url)

    @admin.display(description="API key")
    def api_key(self, job: Any) -> SafeString | str:
        """Return the beginning of the job's API key, and its name if the key exists and the user may look at keys."""
        if job.key_start is None:
            return display.NONE
        return format_html(
            "<code>{}…</code> {}", display.escape_text(job.key_start), display.escape_text(job.key_name or "")
        )

    @admin.display(description="worker")
    def ran_on(self, job: Job) -> SafeString | str:
        return job_timeline.render_worker_link(job)

    @admin.display(description="batch")
    def batched(self, job: Job) -> SafeString | str:
        return job_timeline.render_batch_link(job, words="")

    @admin.display(description="batch")
    def batch_link(self, job: Job) -> SafeString | str:
        return job_timeline.render_batch_link(job)

    @admin.display(description="message sent")
    def message_sent_at(self, job: Job) -> str:
        return display.NONE if job.parts or job.published_at is None else display.format_moment(job.published_at)

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
        return format_html('number {} of <a href="{}?bulk={}">this bulk</a>', job.bulk_index, url, job.bulk_id)

    @admin.display(description="webhook")
    def webhook_link(self, job: Job) -> SafeString | str:
        webhook = Webhook.objects.filter(job=job).first()
        if webhook is None:
            return display.NONE
        url = reverse("admin:inference_webhook_change", args=[webhook.pk])
        return format_html('<a href="{}">{}</a>', url, webhook.state)

    # Steering

    @admin.action(description="Cancel the selected jobs", permissions=["steer"])
    def cancel_jobs(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        return self.perform_or_confirm_action(request, queryset, ActKind.CANCEL)

    @admin.action(description="Retry the selected jobs", permissions=["steer"])
    def retry_jobs(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        return self.perform_or_confirm_action(request, queryset, ActKind.RETRY)

    @admin.action(description="Retry the selected jobs, each alone", permissions=["steer"])
    def retry_jobs_alone(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Run jobs again with nothing beside them in their worker, which shows if one fails by itself."""
        return self.perform_or_confirm_action(request, queryset, ActKind.RETRY_ALONE)

    def perform_or_confirm_action(
        self, request: HttpRequest, queryset: QuerySet[Job], kind: ActKind
    ) -> HttpResponse | None:
        """Cancel or retry the jobs that were ticked at once, or ask for confirmation if all of the list were chosen.

        Once it is confirmed, an act on all jobs is done by the workers.
        """
        if request.POST.get("select_across", "0") != "0":
            return self.show_confirmation(request, queryset, kind)
        chosen = list(queryset.order_by("pk").only("pk", "model")[: self.list_per_page])
        LogEntry.objects.log_actions(str(request.user.pk), chosen, CHANGE, CHANGE_MESSAGES[kind])
        ids = [job.pk for job in chosen]
        alone = kind == ActKind.RETRY_ALONE
        report = job_actions.cancel_jobs(ids) if kind == ActKind.CANCEL else job_actions.retry_jobs(ids, alone=alone)
        for level, text in report:
            self.message_user(request, text, level)
        return None

    def show_confirmation(self, request: HttpRequest, queryset: QuerySet[Job], kind: ActKind) -> HttpResponse | None:
        """Count the jobs of an act on all, and show what it would do."""
        if (lookups := job_lookups.make_lookups_from_query(request.GET, request.user)) is None:
            text = "An action on all jobs takes only the filters and the search. Remove other parameters from the URL."
            self.message_user(request, text, messages.ERROR)
            return None
        count = queryset.order_by().values("pk")[: acts.MOST + 1].count()
        counted = min(count, acts.MOST)
        plan = {
            "id": str(make_row_id()), "by_id": request.user.pk, "kind": kind, "selection": lookups,
            "newest": str(make_row_id()), "counted": counted,
        }  # fmt: skip
        return self.render_page(
            request,
            "inference/confirm.html",
            title=f"{kind.label} {format_count(counted, 'job')}?",
            kind=kind,
            counted=counted,
            is_more=count > counted,
            facts=act_pages.list_selection_facts(lookups),
            plan=signing.dumps(plan, salt=SALT),
            query=request.GET.urlencode(),
        )

    def store_confirmed_act(self, request: HttpRequest) -> HttpResponse:
        """Leave an act that was confirmed to the workers, once, however often the button is pressed."""
        try:
            plan = signing.loads(request.POST.get("plan", ""), salt=SALT, max_age=CONFIRMED_WITHIN)
        except signing.BadSignature:
            plan = {"by_id": None}
        if plan["by_id"] != request.user.pk:
            self.message_user(request, "The confirmation has expired. Select the jobs again.", messages.ERROR)
            return redirect("admin:inference_job_changelist")
        act, is_new = Act.objects.get_or_create(pk=plan.pop("id"), defaults=plan)
        if is_new:
            self.log_addition(
                request,
                act,
                f"Began to {act.kind} {format_count(act.counted, 'job')}:"
                f" {act_pages.describe_selection(act.selection)}",
            )
        return redirect("admin:inference_act_change", act.pk)

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        urls = [
            path("<uuid:pk>/steer/", self.make_button_view(self.handle_button), name="inference_job_steer"),
            path("<uuid:pk>/media/", view(self.serve_media), name="inference_job_media"),
            path("<uuid:pk>/now/", view(self.get_live_state), name="inference_job_now"),
            path("act/", self.make_button_view(self.store_confirmed_act), name="inference_job_act"),
            path("export/<slug:form>/", view(self.export_list), name="inference_job_export"),
            path("batches/", view(self.show_recent_batches), name="inference_job_batches"),
            path("batches/<uuid:pk>/", view(self.show_batch), name="inference_job_batch"),
        ]
        return [*urls, *super().get_urls()]

    def export_list(self, request: HttpRequest, form: str) -> HttpResponseBase:
        """Return what the list of the same query shows as a file."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if form not in export.FORMS:
            raise Http404
        try:
            listed = self.get_changelist_instance(request).get_queryset(request)
        except IncorrectLookupParameters:
            return redirect("admin:inference_job_changelist")
        logger.info("user=%s exports jobs as %s: %.500s", request.user.pk, form, request.GET.urlencode())
        return export.stream_export(listed, form)

    def show_recent_batches(self, request: HttpRequest) -> HttpResponse:
        return self.render_page(
            request, "inference/batches.html", title="Batches", batches=batches.list_recent_batches()
        )

    def show_batch(self, request: HttpRequest, pk: UUID) -> HttpResponse:
        if (found := batches.find_batch(pk)) is None:
            raise Http404
        return self.render_page(request, "inference/batch.html", title=f"Batch …{pk.hex[-8:]}", batch=found)

    def make_page_context(self, request: HttpRequest, row: Job) -> dict[str, Any]:
        return {
            "title": f"Job …{row.pk.hex[-8:]}",
            "story": job_timeline.list_events(row),
            "bar": job_timeline.draw_wait_and_run(row),
            "data": job_payload.render_payload(row),
            "parameters": display.format_json(row.parameters),
        }

    def get_visible_job(self, request: HttpRequest, pk: UUID) -> Job:
        """Return a job that the user may see.

        Raises `PermissionDenied` or `Http404` otherwise.
        """
        if not self.has_view_permission(request):
            raise PermissionDenied
        return get_object_or_404(self.get_queryset(request), pk=pk)

    def serve_media(self, request: HttpRequest, pk: UUID) -> HttpResponse:
        """Return an image or a sound of the job's inputs or output."""
        found, _ = job_payload.read_payload(self.get_visible_job(request, pk))
        try:
            answer = job_media.make_media_response(job_media.look_up_value(found, request.GET.get("at", "")))
        except LookupError:
            answer = None
        if answer is None:
            raise Http404
        return answer

    def get_live_state(self, request: HttpRequest, pk: UUID) -> JsonResponse:
        """Return what changes while the job waits and runs."""
        job = self.get_visible_job(request, pk)
        text = job_payload.read_text_so_far(job.pk) if job.status == Status.RUNNING else ""
        return JsonResponse({"status": job.status, "text": text}, headers={"Cache-Control": "no-store"})

    def handle_button(self, request: HttpRequest, pk: UUID) -> HttpResponse:
        """Do what a button of one job's page asks for."""
        actions = {"cancel": self.cancel_jobs, "retry": self.retry_jobs, "retry_alone": self.retry_jobs_alone}
        action = actions.get(request.POST.get("action", ""))
        if action:
            action(request, self.get_queryset(request).filter(pk=pk))  # this form never selects across pages
        return redirect("admin:inference_job_change", pk)
