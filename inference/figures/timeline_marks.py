"""Marks of what changed and when, for comparison with the figures of what happened since."""

import enum

from django.conf import settings
from django.db.models.functions import Now

from inference import row_locks
from inference.models import Mark


class MarkKind(enum.StrEnum):
    """The kind of a mark. It has at most ten letters, as its column does."""

    DEPLOYED = "deployed"
    STARTED = "started"
    STOPPED = "stopped"
    GONE = "gone"
    RETENTION = "retention"


def add_mark(kind: MarkKind, text: str) -> None:
    Mark.objects.create(kind=kind, text=text[:300], at=Now())


def mark_retention_stop(why: str) -> None:
    """Mark since when old jobs are not removed, and the present reason, until `clear_retention_stop`."""
    if not row_locks.update_rows(Mark.objects.filter(kind=MarkKind.RETENTION), text=why[:300]):
        add_mark(MarkKind.RETENTION, why)


def clear_retention_stop() -> None:
    row_locks.delete_rows(Mark.objects.filter(kind=MarkKind.RETENTION))


def mark_worker_start(worker: str) -> None:
    """Mark that a worker started, and a deployment if its release is another one than that of the workers before it."""
    if settings.RELEASE:
        last = Mark.objects.filter(kind=MarkKind.DEPLOYED).order_by("-at").values_list("text", flat=True).first()
        if last != settings.RELEASE:
            add_mark(MarkKind.DEPLOYED, settings.RELEASE)
    add_mark(MarkKind.STARTED, worker)
