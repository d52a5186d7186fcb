"""The choice of the stream that may cancel its job when its client goes.

Of the streams of a job whose clients want it cancelled when they go, the last one decides. A client that has come back,
perhaps to another web process, must not lose its job when its old connection is found to be closed. The job's row names
the last stream, as the decision is final.
"""

from __future__ import annotations

from uuid import UUID, uuid4

from inference.models import WAITING, Job
from inference.store import transitions


def record_newest_reader(job_id: UUID) -> UUID:
    """Write on the row that a new stream is the newest one, and return the name of the stream."""
    name = uuid4()
    Job.objects.filter(pk=job_id, status__in=WAITING).update(reader=name)
    return name


def cancel_if_newest_reader(job_id: UUID, name: UUID) -> bool:
    """Cancel the job if that stream is still the newest one. Return True if the job was cancelled."""
    return transitions.cancel_job(job_id, reader=name)
