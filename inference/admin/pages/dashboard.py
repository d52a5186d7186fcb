"""The first page of an operator: queues, workers, batches and failures.

Every query is bounded. A job that runs in parts counts by its parts where jobs wait and run, and as one job where
outcomes are counted.
"""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse

from inference import clock
from inference.admin.rendering import display
from inference.catalog.lookup import get_catalog_or_empty
from inference.fields.ids import make_first_id
from inference.figures import sample, series, tallies
from inference.figures.tallies import Tally
from inference.models import TERMINAL, Job, Status, WebhookState, Worker
from inference.status import attention, worker_catalogs, workers

RECENT = datetime.timedelta(minutes=15)  # time of which batch sizes and durations are shown
SIZES = ("1", "2", "3-4", "5-8", "9-16", "17-32", "33+")  # items of a batch


def collect_dashboard() -> dict[str, Any]:
    hour = series.count_outcomes_since(clock.get_database_time() - datetime.timedelta(hours=1))
    ended = series.sum_outcomes_by_status(hour)
    return {
        "attention": list_attention_rows(),
        "models": list_model_rows(),
        "workers": workers.exclude_long_ended_workers(Worker.objects.all())[:50],
        "failures": list_failure_rows(hour),
        "finished": {status: f"{ended[status]:,}" for status in TERMINAL},
    }


def list_attention_rows() -> list[dict[str, Any]]:
    """Return what needs attention, each item with the address of a page about it, and with what follows from it."""
    rows: list[dict[str, Any]] = []
    for item in attention.find_items():
        row = {"item": item, "place": _find_page_address(item.about), "consequences": []}
        (rows[-1]["consequences"] if item.follows else rows).append(row)
    return rows


def _find_page_address(about: tuple[str, ...]) -> str:
    """Return the address of the page where to look, or an empty string if there is none."""
    jobs = reverse("admin:inference_job_changelist")
    match about:
        case ("worker", worker):
            return reverse("admin:inference_worker_change", args=[worker])
        case ("model", model):
            return f"{jobs}?{urlencode({'model': model, 'status__exact': Status.QUEUED.value})}"
        case ("paused", model):
            return reverse("admin:inference_pausedmodel_change", args=[model])
        case ("file batches",):
            return reverse("admin:api_filebatch_changelist")
        case ("webhooks",):
            return f"{reverse('admin:inference_webhook_changelist')}?state__exact={WebhookState.PENDING}"
        case ("failed", model, code):
            return f"{jobs}?{urlencode({'status__exact': Status.FAILED.value, 'model': model, 'error_code': code})}"
    return ""


def list_model_rows() -> list[dict[str, Any]]:
    (queued, ages), running = sample.count_queued_jobs(), sample.count_running_jobs()
    living, recent = list(workers.select_living_workers()), series.sum_figures_since(clock.get_database_time() - RECENT)
    serving, runs = workers.count_workers_by_model(living), worker_catalogs.count_workers_by_entry(living)
    specs = get_catalog_or_empty()
    gone = sorted((queued.keys() | running.keys() | runs.keys()) - specs.keys())
    return [
        {
            "name": name,
            "spec": specs.get(name),  # None for a model that is gone from the file and has jobs left
            "queued": queued.get(name, 0),
            "oldest": display.format_duration(ages.get(name)),
            "running": running.get(name, 0),
            "workers": serving[name],
            "runs": sorted(runs.get(name, {}).items()),
            **_summarize_tally(recent.get(name, {})),
        }
        for name in (*specs, *gone)
    ]


def _summarize_tally(tally: Tally) -> dict[str, Any]:
    """Return the medians of a model's times, and the batches that it ran."""
    batches = tally.get("batch")
    return {
        "wait": display.format_duration(tallies.compute_quantile(tally.get("wait"), 0.5)),
        "run": display.format_duration(tallies.compute_quantile(tally.get("run"), 0.5)),
        "mean_batch": tallies.compute_mean(batches),
        "bars": _count_batch_sizes({int(bucket): count for bucket, count in batches["in"].items()}) if batches else [],
    }


def _count_batch_sizes(batches: Mapping[int, int]) -> list[dict[str, Any]]:
    """Return the number of batches by how many items they had; `percent` is relative to the tallest bar."""
    ends = [*(tallies.STEPS * power for power in range(len(SIZES) - 1)), math.inf]
    counts, before = [], -1.0
    for end in ends:
        counts.append(sum(count for bucket, count in batches.items() if before < bucket <= end))
        before = end
    return [
        {"label": label, "batches": count, "percent": 100 * count / max(counts)}
        for label, count in zip(SIZES, counts, strict=True)
    ]


def list_failure_rows(ended: Mapping[str, Counter[str]]) -> list[dict[str, Any]]:
    """Return the failures by model and error code, each with its newest job.

    The newest job is found by its id: a search for the one that ended last would read all of them. It is one of the
    last day, as the search has to be bounded, and jobs that failed within the last hour were mostly made within a day.
    """
    first = make_first_id(clock.get_database_time() - datetime.timedelta(days=1))
    failed = Job.objects.filter(status=Status.FAILED, whole=None, pk__gte=first).order_by("-pk")
    return [
        {"model": model, "error_code": code, "jobs": count, "latest": latest}
        for model, code, count in series.list_failures(ended)
        if (latest := failed.filter(model=model, error_code=code).defer("inputs", "output").first())
    ]
