"""What the rows say of outcomes, as figures count them."""

from collections import Counter

from django.db import DEFAULT_DB_ALIAS
from django.db.models import QuerySet

from inference.figures import series, tally_rows
from inference.figures.tally_rows import TICK_S, floor_to_tick
from inference.models import TERMINAL, Figure, Grain, Job, Status


def drop_tallies() -> None:
    """Write what other tests noted, and delete it."""
    tally_rows.flush_tallies()
    Figure.objects.all().delete()


def of_rows(jobs: QuerySet[Job]) -> Counter[tuple[str, str]]:
    """By model and end, of the jobs that clients know."""
    ended = jobs.filter(whole=None, status__in=TERMINAL).order_by().values_list("model", "status", "error_code")
    return Counter((model, f"{status} {code}" if status == Status.FAILED else status) for model, status, code in ended)


def of_figures(database: str = DEFAULT_DB_ALIAS) -> Counter[tuple[str, str]]:
    counted = Counter[tuple[str, str]]()
    for model, tally in series.sum_all_time_figures(database).items():
        counted.update({(model, end): count for end, count in tally.get("ended", {}).items()})
    return counted


def misplaced(database: str = DEFAULT_DB_ALIAS) -> dict[int, tuple[int, int, int]]:
    """By tick: how many ends are counted until then, and how many rows had ended a tick before and after it, where the
    first is not between the others. Of the last half of an hour: what is older is put together."""
    counted, ended = Counter[int](), Counter[int]()
    rows = Figure.objects.using(database).filter(grain__in=(Grain.WRITTEN, Grain.TICK))
    for start, tally in rows.values_list("start", "tally"):
        counted[int(start.timestamp())] += sum(tally.get("ended", {}).values())
    jobs = Job.objects.using(database).filter(whole=None, status__in=TERMINAL).order_by()
    for finished_at in jobs.values_list("finished_at", flat=True):
        ended[floor_to_tick(finished_at.timestamp()) if finished_at else 0] += 1
    found = {}
    for tick in sorted(counted | ended):
        total, before, after = until(counted, tick), until(ended, tick - TICK_S), until(ended, tick + TICK_S)
        if not before <= total <= after:
            found[tick] = (total, before, after)
    return found


def until(counts: Counter[int], tick: int) -> int:
    return sum(count for at, count in counts.items() if at <= tick)
