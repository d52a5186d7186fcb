"""The client of `batch_inference_client` inside Django, which does without a request what the views do.

from api.in_process_client import InProcessClient

with InProcessClient(owner=user) as client:
    client.run("embeddings", "a text")
"""

from __future__ import annotations

import contextlib
import functools
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import orjson
from django.core.files.base import File
from django.db import InterfaceError, OperationalError, connection, transaction
from rest_framework.exceptions import ValidationError

from api import codec
from api.answers import resources
from api.auth import Principal
from api.errors import problems
from api.file_batches import batches, files, results
from api.file_batches.documents import make_batch_document, make_file_document
from api.file_batches.endpoints import ENDPOINTS
from api.models import FilePurpose
from api.requests import bodies
from api.requests import bulk as bulk_body
from api.requests.file_batches import read_file_batch
from api.views import streaming
from api.views.base import get_visible_job
from api.views.bulk import check_and_cancel_bulk, get_visible_bulk
from api.views.jobs import JOB_BODY, cancel_own_job, wait_for_finished_jobs
from batch_inference_client import BaseClient, ClientError
from batch_inference_client.client import PATIENCE_S
from batch_inference_client.errors import PASSING
from batch_inference_client.service import Document, Service, StreamEvent, dumps
from inference import process_resources
from inference.catalog.lookup import get_catalog
from inference.catalog.specs import CatalogError
from inference.errors import InferenceError
from inference.status import readiness
from inference.streams import reader
from inference.streams.events import Delta, End, Event, Restart
from inference.streams.positions import BEGINNING, Position
from inference.submission import bulk, jobs
from inference.submission.submissions import Terms

UNDONE = "A file is not stored within a transaction, as its content would stay when that is undone: store it before."
UNCOMMITTED = "A job that a transaction submits runs only after its commit: wait for it then."

T = TypeVar("T", bound=Terms)
P = ParamSpec("P")


def keep_connection_open(call: Callable[P, Document]) -> Callable[P, Document]:
    """Wrap a call that waits, so that it does not close an open connection of the caller.

    A call that waits gives its database connection back. If the caller has an open connection, it may be reading rows
    with it. The call then runs in another thread, and the connection stays as it is. Within a transaction the call runs
    in the caller's thread.
    """

    @functools.wraps(call)
    def call_in_own_thread(*arguments: P.args, **named: P.kwargs) -> Document:
        if connection.connection is None or connection.in_atomic_block:
            return call(*arguments, **named)
        with ThreadPoolExecutor(1, thread_name_prefix="inference-client-inside") as thread:
            return thread.submit(call, *arguments, **named).result()

    return call_in_own_thread


class InProcessClient(BaseClient):
    """A client whose jobs belong to `owner`, or have no owner, and are not bounded by a share of the queue.

    A job that is submitted within a transaction can be waited for once the transaction is committed.
    """

    def __init__(self, owner: Any = None, *, patience_s: float = PATIENCE_S) -> None:
        super().__init__(InProcessService(Principal(user=owner)), patience_s=patience_s)


class InProcessService(Service):
    def __init__(self, principal: Principal) -> None:
        self._principal = principal

    @keep_connection_open
    def submit(self, job: Mapping[str, Any], *, key: str, wait_s: float = 0.0, answer_s: float = math.inf) -> Document:
        with _guard_call(committed=wait_s > 0):
            submission = bodies.make_submission(JOB_BODY.run_validation(codec.parse_json(dumps(job))))
            return _to_document(
                resources.make_job_document(jobs.submit(self._add_request_terms(submission, key)), plain=True)
            )

    @keep_connection_open
    def wait(self, ids: Sequence[str], *, wait_s: float) -> Document:
        with _guard_call(committed=True):
            return _to_document(
                wait_for_finished_jobs(self._principal, bodies.read_job_ids(list(ids)), wait_s=wait_s, plain=True)
            )

    def job(self, job_id: str) -> Document:
        with _guard_call():
            return _to_document(resources.make_job_document(get_visible_job(self._principal, job_id), plain=True))

    def stream(self, job_id: str, *, after: str) -> Iterator[StreamEvent | None]:
        """Yield the events of a job, which are read in a thread of its own. It needs the database for moments only."""
        end: Any = object()
        with ThreadPoolExecutor(1, thread_name_prefix="inference-client-inside") as thread:
            events = thread.submit(self._open_events, job_id, after).result()
            while (event := thread.submit(next, events, end).result()) is not end:
                yield event

    def _open_events(self, job_id: str, after: str) -> Iterator[StreamEvent | None]:
        with _guard_call():
            job = get_visible_job(self._principal, job_id)
            streaming.require_streamable_job(job)
            position = Position.from_event_id(after, job.id) if after else BEGINNING
            events = reader.stream_events(job, process_resources.current.hub, after=position)
        return map(_make_stream_event, events)

    def cancel(self, job_id: str) -> Document:
        with _guard_call():
            return _to_document(cancel_own_job(self._principal, job_id, plain=True))

    @keep_connection_open
    def submit_bulk(self, lines: Sequence[bytes], *, terms: Mapping[str, Any], key: str) -> Document:
        query = {name: str(value) for name, value in terms.items()}
        with _guard_call(committed=True):
            submission = bulk_body.read_bulk_from_lines(b"\n".join(lines), query)
            return _to_document(
                resources.make_accepted_bulk_document(bulk.submit(self._add_request_terms(submission, key)))
            )

    def bulk(self, bulk_id: str) -> Document:
        with _guard_call():
            return _to_document(resources.make_bulk_document(get_visible_bulk(self._principal, bulk_id)))

    def cancel_bulk(self, bulk_id: str) -> Document:
        with _guard_call():
            return _to_document(resources.make_bulk_document(check_and_cancel_bulk(self._principal, bulk_id)))

    def upload_file(self, path: Path) -> Document:
        if connection.in_atomic_block:
            raise ClientError(UNDONE, code="bad_request")
        with _guard_call(), path.open("rb") as opened:
            content = File(opened)
            row = files.store_file(
                content, owner=self._principal.user, name=path.name, size=content.size, purpose=FilePurpose.BATCH
            )
            return _to_document(make_file_document(row))

    def create_batch(self, batch: Mapping[str, Any], *, key: str) -> Document:
        with _guard_call():
            wanted = read_file_batch(codec.parse_json(dumps(batch)), ENDPOINTS)
            return _to_document(make_batch_document(batches.create_batch(self._principal, wanted, key=key)))

    def batch(self, batch_id: str) -> Document:
        with _guard_call():
            return _to_document(make_batch_document(batches.get_visible_batch(self._principal, batch_id)))

    def cancel_batch(self, batch_id: str) -> Document:
        with _guard_call():
            return _to_document(make_batch_document(batches.cancel_own_batch(self._principal, batch_id)))

    def file_content(self, file_id: str) -> Iterator[bytes]:
        with _guard_call():
            content = files.open_content(files.get_visible_file(self._principal, file_id))
        with content:
            yield from content.chunks()

    def batch_output(self, batch_id: str) -> Iterator[bytes]:
        with _guard_call():
            batch = batches.get_visible_batch(self._principal, batch_id)
            source = results.open_output_source_file(batch)
        with source:
            yield from results.read_output_file(batch, source)

    def models(self) -> list[Document]:
        with _guard_call():
            return [_to_document(resources.make_model_document(spec)) for spec in get_catalog().values()]

    def ready(self) -> Document:
        with _guard_call():
            reasons = readiness.find_problems()
            return {"ready": not reasons, "reasons": reasons}

    def call_once_stored(self, then: Callable[[], None], *, otherwise: Callable[[], None]) -> None:
        """Call `then` once the transaction is committed, or `otherwise` if it is rolled back.

        Django does not report a rollback: it drops the functions that it would have called after the commit. Therefore
        a finalizer of such a function calls `otherwise`.
        """

        def call_after_commit() -> None:
            undone.detach()
            then()

        undone = weakref.finalize(call_after_commit, otherwise)
        undone.atexit = False
        transaction.on_commit(call_after_commit)

    def refuse_endless_wait(self) -> None:
        if connection.in_atomic_block:
            raise ClientError(UNCOMMITTED, code="bad_request")

    def reconnect(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _add_request_terms(self, submission: T, key: str) -> T:
        return replace(submission, owner=self._principal.user, idempotency_key=bodies.read_idempotency_key(key))


@contextlib.contextmanager
def _guard_call(*, committed: bool = False) -> Iterator[None]:
    """Run the block with its errors raised as `ClientError`, and leave the connection as it was found.

    The client's threads thus keep no connection. With `committed`, raises `ClientError` within a transaction.
    """
    if committed and connection.in_atomic_block:
        raise ClientError(UNCOMMITTED, code="bad_request")
    was_open = connection.connection is not None
    try:
        yield
    except (CatalogError, InferenceError, ValidationError, OperationalError, InterfaceError) as error:
        answer = problems.answer_exception(error)
        problem, after = orjson.loads(answer.content), answer.headers.get("Retry-After")
        raise ClientError(
            problem["detail"],
            code=problem["code"],
            passing=problem["code"] in PASSING,
            retry_after_s=float(after) if after else None,
            problem=problem,
        ) from None
    finally:
        if not was_open and not connection.in_atomic_block:
            connection.close()


def _make_stream_event(event: Event) -> StreamEvent | None:
    match event:
        case Delta():
            return StreamEvent(kind="delta", text=event.text, id=event.id)
        case Restart():
            return StreamEvent(kind="restart", id=event.id)
        case End():
            return StreamEvent(
                kind="end", id=event.id, job=_to_document(resources.make_job_document(event.job, plain=True))
            )
    return None


def _to_document(shown: dict[str, Any]) -> Document:
    """Return the document with strings for ids and times, as over HTTP."""
    document: Document = orjson.loads(codec.write_json(shown))
    return document
