"""What changed, and when, beside what happened since."""

from django.conf import settings
from django.db.models.functions import Now

from inference import queries
from inference.models import Mark

DEPLOYED, STARTED, STOPPED, GONE = "deployed", "started", "stopped", "gone"
RETENTION = "retention"  # of at most ten letters, as the column


def mark(kind: str, text: str) -> None:
    Mark.objects.create(kind=kind, text=text[:300], at=Now())


def retention_stopped(why: str) -> None:
    """Marked since when, and why now, until `retention_goes_on`."""
    if not queries.update(Mark.objects.filter(kind=RETENTION), text=why[:300]):
        mark(RETENTION, why)


def retention_goes_on() -> None:
    queries.delete(Mark.objects.filter(kind=RETENTION))


def started(worker: str) -> None:
    """The first that runs another release than those before it brought it."""
    if settings.RELEASE:
        last = Mark.objects.filter(kind=DEPLOYED).order_by("-at").values_list("text", flat=True).first()
        if last != settings.RELEASE:
            mark(DEPLOYED, settings.RELEASE)
    mark(STARTED, worker)
