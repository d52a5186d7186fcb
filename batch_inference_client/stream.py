"""The text of a job while it is generated, which is read on by itself if a connection breaks off."""

from __future__ import annotations

import time
from collections.abc import Iterator

from batch_inference_client.errors import ClientError, JobError
from batch_inference_client.service import JobStatus, Pauses, Service, StreamEvent


def follow_events(service: Service, job_id: str, *, after: str, patience_s: float) -> Iterator[StreamEvent]:
    """Yield the events of a job's stream, from the one after the id `after` up to its end.

    Raises `JobError` for a job without output, and `ClientError` after `patience_s` without a sign of life.
    """
    pauses = Pauses()
    give_up_at = time.monotonic() + patience_s
    while True:
        broken = ClientError(f"The stream of the job {job_id} broke off.", code="unreachable", passing=True)
        try:
            for event in service.stream(job_id, after=after):
                pauses.reset()
                give_up_at = time.monotonic() + patience_s
                if event is None:
                    continue
                after = event.id or after
                if event.kind != "end":
                    yield event
                elif event.job and event.job["status"] == JobStatus.SUCCEEDED:
                    yield event
                    return
                else:
                    raise JobError.of(event.job or {})
        except JobError:
            raise
        except ClientError as error:
            broken = error
        time.sleep(pauses.after_s(broken, give_up_at))
