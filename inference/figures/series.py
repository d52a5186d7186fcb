"""The figures of a range of time, for charts: as many points as can be distinguished."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db import DEFAULT_DB_ALIAS

from inference import clock
from inference.figures import tallies
from inference.figures.sample import SERVICE
from inference.figures.tallies import Tally
from inference.figures.tally_rows import TICK_S, floor_to_tick, make_datetime
from inference.models import Figure, Grain, Mark, Status

MARKS = 200  # marks of a range that are returned, the latest
FAILED = f"{Status.FAILED} "  # the beginning of the outcome of a failed job, before its error code
CODES = 5  # error codes of a range that are returned, the most frequent


@dataclass(frozen=True, slots=True)
class Range:
    length_s: int
    step_s: int  # seconds of a point


RANGES = {
    "15m": Range(900, TICK_S),
    "day": Range(86_400, 600),
    "month": Range(30 * 86_400, 10_800),
}


def read_series(name: str, model: str = "") -> dict[str, Any]:
    """Return the figures of one of `RANGES`, of one model or of all.

    Each list has one value for each point, or None where nothing is known. The last point is not over yet, and lacks
    what writers have not written yet: a tick at most.
    """
    span = RANGES[name]
    end_s = floor_to_tick(clock.estimate_now_s(), span.step_s) + span.step_s
    starts = range(end_s - span.length_s, end_s, span.step_s)
    points: dict[int, Tally] = {start: {} for start in starts}
    service: dict[int, Tally] = {start: {} for start in starts}
    for start, of, tally in _read_rows(make_datetime(starts[0])):
        point = floor_to_tick(start.timestamp(), span.step_s)
        if point in points and of == SERVICE:
            tallies.merge_tally(service[point], tally)
        elif point in points and model in ("", of):
            tallies.merge_tally(points[point], tally)
    lasted = {start: _compute_lasted_s(start, span.step_s) for start in starts}
    found = [_compute_point(points[start], service[start], model, lasted[start]) for start in starts]
    ended = _sum_outcomes(points.values())
    errors = {
        code: [_compute_error_rate(points[at_s], code, lasted[at_s]) for at_s in starts]
        for code in _list_frequent_codes(ended)
    }
    return {
        "range": name, "model": model, "step_s": span.step_s, "times": list(starts),
        "series": {key: [point[key] for point in found] for key in found[0]},
        "errors": errors,
        "ended": ended,
        "marks": _read_marks(make_datetime(starts[0])),
    }  # fmt: skip


def _read_rows(since: datetime.datetime) -> Iterable[tuple[datetime.datetime, str, Tally]]:
    """Return the rows since then, without those of the future, which were written before the clock was set back."""
    grains = (Grain.WRITTEN, Grain.TICK, Grain.TEN_MINUTES, Grain.THREE_HOURS)
    rows = Figure.objects.filter(grain__in=grains, start__range=(since, make_datetime(clock.estimate_now_s() + TICK_S)))
    return rows.values_list("start", "model", "tally").iterator()


def _compute_lasted_s(start: int, step_s: int) -> float:
    """Return the seconds that a point has lasted, as the current one is not as long as the others yet."""
    return min(float(step_s), max(1.0, clock.estimate_now_s() - start))


def _compute_point(tally: Tally, service: Tally, model: str, lasted_s: float) -> dict[str, float | None]:
    ended: Mapping[str, float] = tally.get("ended", {})
    failed = sum(count for end, count in ended.items() if end.startswith(Status.FAILED))
    now, most = service.get("now", {}), service.get("most", {})
    samples = now.get("samples")
    padded = tally.get("padded")
    return {
        "succeeded": ended.get(Status.SUCCEEDED, 0) / lasted_s,
        "failed": failed / lasted_s,
        "others": (sum(ended.values()) - failed - ended.get(Status.SUCCEEDED, 0)) / lasted_s,
        "wait_p50": tallies.compute_quantile(tally.get("wait"), 0.5),
        "wait_p95": tallies.compute_quantile(tally.get("wait"), 0.95),
        "run_p50": tallies.compute_quantile(tally.get("run"), 0.5),
        "run_p95": tallies.compute_quantile(tally.get("run"), 0.95),
        "first_p50": tallies.compute_quantile(tally.get("first"), 0.5),
        "first_p95": tallies.compute_quantile(tally.get("first"), 0.95),
        "batch": tallies.compute_mean(tally.get("batch")),
        "padding": 1 - tally["real"] / padded if padded else None,
        "tokens": tally.get("tokens", 0) / lasted_s,
        "queued": _aggregate_values(now.get("queued", {}), model, sum) / samples if samples else None,
        "running": _aggregate_values(now.get("running", {}), model, sum) / samples if samples else None,
        "oldest_s": _aggregate_values(most.get("oldest_s", {}), model, max) if samples else None,
        "memory": _aggregate_values(now.get("memory", {}), model, sum) / samples if samples else None,
        "busy": now["replicas"]["busy"] / samples if samples else None,
        "ready": now["replicas"]["ready"] / samples if samples else None,
    }


def _aggregate_values(values: Mapping[str, float], model: str, together: Callable[[list[float]], float]) -> float:
    found = [value for name, value in values.items() if model in ("", name)]
    return float(together(found)) if found else 0.0


def _sum_outcomes(points: Iterable[Tally]) -> dict[str, int]:
    return dict(tallies.sum_tallies({"ended": point.get("ended", {})} for point in points)["ended"])


def _list_frequent_codes(ended: Mapping[str, int]) -> list[str]:
    failed = Counter({end: count for end, count in ended.items() if end.startswith(FAILED)})
    return [end.removeprefix(FAILED) for end, _ in failed.most_common(CODES)]


def _compute_error_rate(tally: Tally, code: str, lasted_s: float) -> float:
    return float(60 * tally.get("ended", {}).get(FAILED + code, 0) / lasted_s)


def _read_marks(since: datetime.datetime) -> list[dict[str, Any]]:
    found = Mark.objects.filter(at__gte=since).order_by("-at")[:MARKS]
    return [{"at": mark.at.timestamp(), "kind": mark.kind, "text": mark.text} for mark in reversed(found)]


def count_outcomes_since(moment: datetime.datetime) -> dict[str, Counter[str]]:
    """Return the outcomes since a moment by model, as `sum_figures_since` does, with a tenth of its work for a day."""
    found: dict[str, Counter[str]] = {}
    for _, model, tally in _read_rows(moment):
        found.setdefault(model, Counter()).update(tally.get("ended", {}))
    return found


def sum_outcomes_by_status(ended: Mapping[str, Counter[str]]) -> Counter[str]:
    """Add up the outcomes of all models by the status that they begin with."""
    found = Counter[str]()
    for ends in ended.values():
        for end, count in ends.items():
            found[end.partition(" ")[0]] += count
    return found


def list_failures(ended: Mapping[str, Counter[str]]) -> list[tuple[str, str, int]]:
    """Return each model and error code with the number of its jobs, the most first."""
    found = [
        (model, end.removeprefix(FAILED), count)
        for model, ends in ended.items()
        for end, count in ends.items()
        if end.startswith(FAILED)
    ]
    return sorted(found, key=lambda failure: -failure[2])


def list_outcomes_since(moment: datetime.datetime) -> dict[str, list[tuple[datetime.datetime, Counter[str]]]]:
    """Return by model the start of each row since a moment and the outcomes that it counts, the newest first."""
    found: dict[str, list[tuple[datetime.datetime, Counter[str]]]] = {}
    for start, model, tally in _read_rows(moment):
        if ended := tally.get("ended"):
            found.setdefault(model, []).append((start, Counter(ended)))
    for ends in found.values():
        ends.sort(key=lambda end: end[0], reverse=True)
    return found


def sum_figures_since(moment: datetime.datetime) -> dict[str, Tally]:
    """Return by model the sum of all rows since a moment, which is as exact as these rows are short."""
    found: dict[str, Tally] = {}
    for _, model, tally in _read_rows(moment):
        tallies.merge_tally(found.setdefault(model, {}), tally)
    return found


def sum_all_time_figures(database: str = DEFAULT_DB_ALIAS) -> dict[str, Tally]:
    """Return by model the sum of all that was ever counted, from one query."""
    found: dict[str, Tally] = {}
    rows = Figure.objects.using(database).filter(grain__in=(Grain.EVER, Grain.WRITTEN))
    for model, tally in rows.values_list("model", "tally"):
        tallies.merge_tally(found.setdefault(model, {}), tally)
    return found
