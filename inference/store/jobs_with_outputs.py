"""Jobs with their outputs, as many as one answer holds."""

from collections.abc import Iterator, Sequence
from uuid import UUID

from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast, Coalesce, Length

from inference.models import Job

MOST = 4_000_000  # characters of JSON; one output alone may have more
MEASURED = 32  # outputs measured at first, then four times as many: the database reads an output to measure it


def load_job_page(
    jobs: QuerySet[Job], most: int, *, without: Sequence[str] = ("inputs", "parameters")
) -> tuple[list[Job], bool]:
    """Return the first of `jobs` with their outputs, and True if there are more.

    They are at most `most` jobs, with at most `MOST` characters of output together; the first alone may have more.
    The columns `without` are not loaded. No output is loaded before its size is known.
    """
    taken: list[UUID] = []
    characters = 0
    for pk, size in _measure_outputs(list(jobs.values_list("pk", flat=True)[: most + 1])):
        characters += size
        if taken and (len(taken) == most or characters > MOST):
            return _load_in_order(taken, without), True
        taken.append(pk)
    return _load_in_order(taken, without), False


def _measure_outputs(ids: Sequence[UUID]) -> Iterator[tuple[UUID, int]]:
    size = Coalesce(Length(Cast("output", TextField())), 0)
    start, count = 0, MEASURED
    while chunk := ids[start : start + count]:
        sizes = dict(Job.objects.filter(pk__in=chunk).order_by().values_list("pk", size))
        yield from ((pk, sizes.get(pk, 0)) for pk in chunk)
        start, count = start + count, 4 * count


def _load_in_order(ids: list[UUID], without: Sequence[str]) -> list[Job]:
    found = Job.objects.defer(*without).in_bulk(ids)
    return [found[pk] for pk in ids if pk in found]
