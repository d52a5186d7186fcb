"""What the rows say of outcomes, as figures count them."""

from collections import Counter

from django.db import DEFAULT_DB_ALIAS
from django.db.models import QuerySet

from inference.figures import series
from inference.models import TERMINAL, Job, Status


def of_rows(jobs: QuerySet[Job]) -> Counter[tuple[str, str]]:
    """By model and end, of the jobs that clients know."""
    ended = jobs.filter(whole=None, status__in=TERMINAL).order_by().values_list("model", "status", "error_code")
    return Counter((model, f"{status} {code}" if status == Status.FAILED else status) for model, status, code in ended)


def of_figures(database: str = DEFAULT_DB_ALIAS) -> Counter[tuple[str, str]]:
    counted = Counter[tuple[str, str]]()
    for model, tally in series.totals(database).items():
        counted.update({(model, end): count for end, count in tally.get("ended", {}).items()})
    return counted
