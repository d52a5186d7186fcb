"""The counters for Prometheus, computed from the figures.

They are the same whichever process is asked, and they only grow.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from inference import clock, process_resources
from inference.figures import series, tallies
from inference.figures.sample import SERVICE
from inference.figures.tallies import Tally
from inference.figures.tally_rows import floor_to_tick, make_datetime
from inference.models import Figure, Grain

SECONDS, ITEMS = 20, 12  # doublings that have a bucket: of durations up to 1,049 s, and of batches up to 4,096 items
WRITE_DELAY_S = 2.0  # seconds after which all web processes have written how many requests waited as a tick began
HISTOGRAMS = (
    ("wait", "job_wait_seconds", "From a job's making to its run.", tallies.UNIT_S, SECONDS),
    ("run", "job_run_seconds", "From a job's claim to its record.", tallies.UNIT_S, SECONDS),
    ("first", "time_to_first_token_seconds", "From a job's making to its first token.", tallies.UNIT_S, SECONDS),
    ("batch", "batch_items", "Items of a batch.", 1.0, ITEMS),
)
SUMS = (
    (("tokens",), "generated_tokens", "Tokens generated."),
    (("real",), "batch_tokens", "Tokens of the items of batches."),
    (("padded",), "batch_padded_tokens", "The same with the padding of their batches."),
    (("engine_s",), "engine_seconds", "What engines ran."),
    (("cost", "real_s"), "predicted_batches_seconds", "What batches took whose cost was predicted."),
    (("cost", "off_s"), "cost_error_seconds", "What those predictions were off by."),
)


def collect_counters() -> Iterator[Metric]:
    totals = series.sum_all_time_figures()
    refused = {model: tally.get("refused", {}) for model, tally in totals.items()}
    answered = totals.pop(SERVICE, {}).get("requests", {})
    yield _make_outcomes_counter(totals)
    for key, name, description, unit, doublings in HISTOGRAMS:
        yield _make_histogram(totals, key, name, description, unit, doublings)
    for path, name, description in SUMS:
        family = CounterMetricFamily(f"inference_{name}", description, labels=["model"])
        for model, tally in totals.items():
            if value := _get_nested_value(tally, path):
                family.add_metric([model], value)
        yield family
    rejections = CounterMetricFamily(
        "inference_rejections", "Requests that were refused for want of room.", labels=["model", "code"]
    )
    for model, codes in refused.items():
        for code, count in codes.items():
            rejections.add_metric([model, code], count)
    yield rejections
    requests = CounterMetricFamily(
        "inference_requests", "Requests that were answered.", labels=["method", "route", "status", "dialect"]
    )
    for answer, count in answered.items():
        method, route, status, dialect = (*answer.split(" "), "")[:4]  # the version before counted no dialects
        requests.add_metric([method, route, status, dialect], count)
    yield requests
    waiting = "Requests of all web processes that wait, or waited seconds ago."
    yield GaugeMetricFamily("inference_requests_waiting", waiting, value=_count_waiting_requests())


def _get_nested_value(tally: Mapping[str, Any], path: tuple[str, ...]) -> float:
    found: Any = tally
    for key in path:
        found = found.get(key, {})
    return float(found or 0.0)


def _make_outcomes_counter(totals: Mapping[str, Tally]) -> Metric:
    family = CounterMetricFamily("inference_jobs", "Jobs that ended.", labels=["model", "status", "code"])
    for model, tally in totals.items():
        for end, count in tally.get("ended", {}).items():
            status, _, code = end.partition(" ")
            family.add_metric([model, status, code], count)
    return family


def _make_histogram(
    totals: Mapping[str, Tally], key: str, name: str, description: str, unit: float, doublings: int
) -> Metric:
    family = HistogramMetricFamily(f"inference_{name}", description, labels=["model"])
    for model, tally in totals.items():
        if found := tally.get(key):
            counts = {int(bucket): count for bucket, count in found["in"].items()}
            buckets = [
                (f"{2.0**power * unit:g}", sum(n for bucket, n in counts.items() if bucket <= power * tallies.STEPS))
                for power in range(doublings + 1)
            ]
            family.add_metric([model], [*buckets, ("+Inf", sum(counts.values()))], found["sum"])
    return family


def _count_waiting_requests() -> int:
    """Return the number of requests that wait.

    It is the number that all web processes wrote at the beginning of a tick. The number of this process, which is
    current, counts instead if it is larger.
    """
    start: datetime.datetime = make_datetime(floor_to_tick(clock.estimate_now_s() - WRITE_DELAY_S))
    rows = Figure.objects.filter(grain__in=(Grain.WRITTEN, Grain.TICK), start=start, model=SERVICE)
    total: int = sum(tally.get("now", {}).get("requests_waiting", 0) for tally in rows.values_list("tally", flat=True))
    return max(total, len(process_resources.current.listener))
