"""Answers that are written while a job runs.

Each holds a thread and a slot among the requests that wait. It holds no database connection.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator, Iterator
from uuid import UUID

from django.db import DatabaseError, InterfaceError, connection
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from api.answers import events
from api.answers.completions import completion
from api.auth import require_cancel_or_retry
from api.errors.problems import ApiError
from api.requests import bodies
from api.views.base import ApiView
from inference import process_resources
from inference.models import Job
from inference.streams import disconnect_cancellation, reader
from inference.streams.events import Event
from inference.streams.positions import BEGINNING, Position

logger = logging.getLogger(__name__)

HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # no proxy is to buffer or keep it
QUERY = ("on_disconnect",)
NO_ROOM = "Too many of your requests wait already. Come back later, or submit a job and poll it."


class StreamBody:
    """The body of a streamed answer.

    A thread of the server takes its pieces one by one, and closes it. It also closes a body of which it took no piece,
    and one whose client has gone, which it notices when it writes the next piece.
    """

    def __init__(
        self, pieces: Generator[bytes, None, None], held: contextlib.ExitStack, left: Callable[[], None] | None
    ) -> None:
        """Take the pieces, and `held`, which is closed with them. `left` is called if the client leaves early."""
        self.pieces, self.held, self.left = pieces, held, left
        self.has_ended = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self.pieces)
        except BaseException:
            self.has_ended = True
            raise

    def close(self) -> None:
        with self.held:
            self.pieces.close()
            if self.left and not self.has_ended:
                self.left()


def answer_stream(
    view: ApiView,
    request: HttpRequest,
    job: Callable[[], Job],
    written: Callable[[Job, Iterator[Event]], Generator[bytes, None, None]],
    *,
    after: Position = BEGINNING,
) -> HttpResponseBase:
    """Return the streamed answer for a job.

    `job` finds or submits the job once there is room to wait for it. `written` turns the job's events into the bytes
    that are sent. Raises `ApiError` if there is no room, and the errors of `job`.
    """
    cancels = bodies.cancels_on_disconnect(request.GET)
    if request.method == "HEAD":
        job()
        return HttpResponse(content_type=events.CONTENT_TYPE, headers=HEADERS)
    with contextlib.ExitStack() as held:
        if not held.enter_context(
            process_resources.current.wait_slots.limit_wait(view.principal.user_id, reader.LONGEST_S)
        ):
            raise ApiError(NO_ROOM, "overloaded", retry_after_s=1)
        row = job()
        if cancels:
            require_cancel_or_retry(view.principal, row)
        left = _make_cancel_callback(row.id, is_accepted=request.method == "POST") if cancels else None
        pieces = written(row, reader.stream_events(row, process_resources.current.hub, after=after))
        body = StreamBody(pieces, held.pop_all(), left)
    headers = {**HEADERS, "Content-Location": f"/v1/jobs/{row.id}/stream"}
    return StreamingHttpResponse(body, content_type=events.CONTENT_TYPE, headers=headers)


def read_position(request: HttpRequest, job: Job) -> Position:
    """Return the position of the last event that the client received. Raises `UnknownPosition`."""
    event_id = request.META.get("HTTP_LAST_EVENT_ID") or request.GET.get("last_event_id")
    return Position.from_event_id(event_id, job.id) if event_id else BEGINNING


def require_streamable_job(job: Job) -> None:
    """Raise `ApiError` for a job that generates no text, or several texts."""
    if not completion.generates_single_text(job):
        raise ApiError(
            f"The job {job.id} has no stream: it does not generate one text. GET /v1/jobs/{job.id}/output?wait=30"
            " waits for its output."
        )


def _make_cancel_callback(job_id: UUID, *, is_accepted: bool) -> Callable[[], None] | None:
    """Return the function to call if the client of a new stream goes, which cancels the job.

    For a job that the same request has posted (`is_accepted`), a database error is logged, and None is returned: a
    client that was refused would post the job again. For any other job the error is raised.
    """
    try:
        name = disconnect_cancellation.record_newest_reader(job_id)
    except (DatabaseError, InterfaceError) as error:
        if not is_accepted:
            raise
        connection.close()
        logger.warning("job=%s goes on also when its client has gone: %s", job_id, error)
        return None

    def cancel_unless_stopping() -> None:
        if not process_resources.current.hub.is_stopping:
            _cancel_left_job(job_id, name)

    return cancel_unless_stopping


def _cancel_left_job(job_id: UUID, name: UUID) -> None:
    """Cancel the job of a client that has gone. It stays as it is if it has ended, or if its client has come back."""
    try:
        if disconnect_cancellation.cancel_if_newest_reader(job_id, name):
            logger.info("job=%s is cancelled: its client has gone", job_id)
    except (DatabaseError, InterfaceError) as error:
        logger.warning("job=%s goes on, though its client has gone: %s", job_id, error)
    finally:
        connection.close()
