"""A job's inputs and output, read from its row as far as a page shows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any
from uuid import UUID

import redis
from django.db.models import TextField
from django.db.models.functions import Cast, Length
from django.urls import reverse
from django.utils.safestring import SafeString

from inference.admin.rendering import display, inputs_outputs, job_media
from inference.errors import BrokerUnavailable
from inference.models import Job
from inference.streams import redis_streams
from inference.streams.cursor import StreamCursor, TextDiverged
from inference.streams.positions import BEGINNING

MOST = 16_000_000  # characters of JSON of either side that are read at most
SIDES = ("inputs", "output")


@dataclass(slots=True)
class JobPayload:
    pairs: list[tuple[int | None, SafeString, SafeString | None]] = field(default_factory=list)
    left: int = 0  # inputs that are not shown
    problems: list[str] = field(default_factory=list)


def render_payload(job: Job) -> JobPayload:
    found, problems = read_payload(job)
    if "inputs" not in found:
        return JobPayload(problems=problems)

    def link(path: job_media.Path) -> str:
        return reverse(
            "admin:inference_job_media",
            args=[job.pk],
            query={"at": job_media.encode_value_path(str(path[0]), path[1:])},
        )

    inputs = found["inputs"]
    if job.parts and isinstance(found.get("output"), list):
        found["output"] = found["output"][: len(inputs)]
    pairs = list(inputs_outputs.render_pairs(inputs, found.get("output"), link))
    left = inputs_outputs.count_omitted_inputs(inputs) if not job.parts else max(0, job.size - len(inputs))
    return JobPayload(pairs=pairs, left=left, problems=problems)


def read_payload(job: Job) -> tuple[dict[str, Any], list[str]]:
    """Return by side what is not too large to be shown, and a sentence for each side that is too large."""
    sizes = Job.objects.filter(pk=job.pk).values(
        **{f"characters_of_{side}": Length(Cast(side, TextField())) for side in SIDES}
    )
    known: dict[str, Any] = dict(sizes.order_by().first() or {})
    names = [side for side in SIDES if (known.get(f"characters_of_{side}") or 0) <= MOST]
    found: dict[str, Any] = dict(Job.objects.filter(pk=job.pk).order_by().values(*names).first() or {}) if names else {}
    if job.parts and "inputs" in found:
        found["inputs"] = _read_first_inputs(job.pk)
    problems = [
        f"Too large to show: {side}, {known[f'characters_of_{side}']:,} characters. The API returns all of it."
        for side in SIDES
        if side not in names
    ]
    return found, problems


def _read_first_inputs(whole: UUID) -> list[Any]:
    """Return the first inputs of a whole, from as many parts as inputs are shown: each part has one at least."""
    parts = Job.objects.filter(whole=whole).order_by("place").values_list("inputs", flat=True)
    most = inputs_outputs.MOST_ITEMS
    return list(islice(chain.from_iterable(parts[:most].iterator(chunk_size=1)), most))


def read_text_so_far(job_id: UUID) -> str:
    """Return what was generated until now of a text, or an empty string if that is not known."""
    try:
        entries = redis_streams.read_entries({job_id: redis_streams.FIRST}, redis_streams.MOST_CHUNKS).get(job_id, [])
        delta = StreamCursor(job_id, BEGINNING).take_new_text(entries)
    except (redis.RedisError, BrokerUnavailable, TextDiverged):
        return ""
    return display.escape_text(delta.text[: display.LONGEST_TEXT]) if delta else ""
