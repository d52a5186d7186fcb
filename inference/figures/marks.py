"""What changed, and when, beside what happened since."""

from django.conf import settings

from inference.models import Mark

DEPLOYED, STARTED, STOPPED, GONE = "deployed", "started", "stopped", "gone"


def mark(kind: str, text: str) -> None:
    Mark.objects.create(kind=kind, text=text[:300])


def started(worker: str) -> None:
    """The first that runs another release than those before it brought it."""
    if settings.RELEASE:
        last = Mark.objects.filter(kind=DEPLOYED).order_by("-at").values_list("text", flat=True).first()
        if last != settings.RELEASE:
            mark(DEPLOYED, settings.RELEASE)
    mark(STARTED, worker)
