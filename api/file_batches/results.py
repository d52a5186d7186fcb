"""The files of a batch's answers and errors, which are written from the rows of its jobs.

Both are written to the disk at first, and to the storage once they are complete.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any
from uuid import UUID

from django.core.files.base import File
from django.http import HttpResponse

from api import codec
from api.errors import openai, problems
from api.errors.problems import ApiError
from api.file_batches.endpoints import ENDPOINTS, Endpoint
from api.file_batches.files import begin_file, open_content, select_current_files, write_content
from api.file_batches.lines import Line, read_lines
from api.models import BatchStatus, FileBatch, FilePurpose, StoredFile
from api.requests.file_form import open_temporary_file
from inference.catalog.lookup import get_last_spec
from inference.connection_retries import is_away
from inference.fields.ids import make_row_id
from inference.models import Job, Status
from inference.store import connections, jobs_with_outputs

PAGE = 64  # jobs that are read at once
PAGE_BYTES = 4 * 1024 * 1024  # of their lines, which are about as long as their inputs
NOT_RUN = {  # code and message of a line without an answer, by what ended it
    Status.EXPIRED: ("batch_expired", "This request could not be executed before the completion window expired."),
    Status.CANCELLED: ("batch_cancelled", "This request was cancelled before it was answered."),
    Status.FAILED: ("request_removed", "The job of this request was removed before the batch ended."),
}


@dataclass(slots=True)
class Results:
    """The answers of a batch, each a line, and how many there are."""

    answers: IO[bytes]
    errors: IO[bytes]
    completed: int = 0
    failed: int = 0
    expired: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    def close(self) -> None:
        self.answers.close()
        self.errors.close()

    @property
    def usage(self) -> dict[str, int]:
        return {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}


def write_results(batch: FileBatch, file: IO[bytes], keep_on: Callable[[], None]) -> Results:
    """Write a line for each line of a batch's file. `keep_on` is called now and then, and may raise to end it."""
    results, ids = Results(open_temporary_file(), open_temporary_file()), _find_ids(batch)
    try:
        for page in _split_into_pages(read_lines(file)):
            keep_on()
            for line, job in _pair_with_jobs(page, ids):
                _write_line(batch, line, job, results)
    except BaseException:
        results.close()
        raise
    return results


def open_output_source_file(batch: FileBatch) -> File[bytes]:
    """Open the file of which `read_output_file` makes the output: its output file once it ended, else its input.

    Raises `ApiError` if there is no such file, and `StoreUnavailable` if it cannot be read.
    """
    source = batch.output_file if batch.is_finished else batch.input_file
    if source is None or not select_current_files().filter(pk=source.pk).exists():
        missing = f"{batch.public_id} has no output file: no line has an answer, or it was deleted, or it has expired."
        raise ApiError(missing, "file_not_found")
    return open_content(source)


def read_output_file(batch: FileBatch, source: File[bytes]) -> Iterator[bytes]:
    """Yield the output file of a batch, or, until it has ended, the answers so far, as that will have them."""
    if batch.is_finished:
        yield from source.chunks()
        return
    ids = _find_ids(batch, status=Status.SUCCEEDED)
    for page in _split_into_pages(line for line in read_lines(source) if line.index in ids):
        answers = io.BytesIO()
        results = Results(answers, io.BytesIO())
        for line, job in _pair_with_jobs(page, ids):
            _write_line(batch, line, job, results)
        connections.release_connection()  # a client may read slowly
        yield answers.getvalue()


def _find_ids(batch: FileBatch, **conditions: Any) -> dict[int | None, UUID]:
    """Return the ids of a batch's jobs by the index of their line."""
    return dict(Job.objects.filter(bulk=batch.id, **conditions).order_by().values_list("bulk_index", "pk"))


def store_results_file(batch: FileBatch, written: IO[bytes], kind: str) -> StoredFile | None:
    """Store a file of results, which nobody sees yet; return None if it is empty."""
    if not (size := written.tell()):
        return None
    written.seek(0)
    row = begin_file(
        owner=batch.owner,
        name=f"{batch.public_id}_{kind}.jsonl",
        purpose=FilePurpose.BATCH_OUTPUT,
        expires_in_s=batch.output_expires_after_s,
    )
    write_content(row, File(written), size)
    return row


def _split_into_pages(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """Yield lines of at most `PAGE_BYTES` together, `PAGE` at most; one alone may have more bytes."""
    page: list[Line] = []
    size = 0
    for line in lines:
        if page and (len(page) == PAGE or size + len(line.text) > PAGE_BYTES):
            yield page
            page, size = [], 0
        page.append(line)
        size += len(line.text)
    if page:
        yield page


def _pair_with_jobs(lines: Sequence[Line], ids: Mapping[int | None, UUID]) -> Iterator[tuple[Line, Job | None]]:
    """Yield each line with its job, of which `ids` has the id by the line's index.

    The jobs are read a few at a time, as an output may be large.
    """
    left = [ids[line.index] for line in lines if line.index in ids]
    page: dict[int | None, Job] = {}
    for line in lines:
        if line.index in ids and line.index not in page:
            jobs, _ = jobs_with_outputs.load_job_page(Job.objects.filter(pk__in=left).order_by("pk"), PAGE, without=())
            page = {job.bulk_index: job for job in jobs}
            read = {job.pk for job in jobs}
            left = [job_id for job_id in left if job_id not in read]
        yield line, page.get(line.index)


def _write_line(batch: FileBatch, line: Line, job: Job | None, results: Results) -> None:
    request, endpoint = codec.parse_json(line.text), ENDPOINTS[batch.endpoint]
    custom_id, body = request["custom_id"], request["body"]
    if job is None or job.status in (Status.EXPIRED, Status.CANCELLED):
        status = Status(job.status) if job else _find_reason(batch, line)
        code, message = NOT_RUN[status]
        results.expired += status == Status.EXPIRED
        results.failed += status != Status.EXPIRED and batch.status != BatchStatus.CANCELLING
        error = {"code": code, "message": message}
        results.errors.write(_encode_line(job, custom_id, None, error=error))
        return
    if job.status != Status.SUCCEEDED:
        _write_problem(_make_job_problem(job, endpoint, body), endpoint, job, custom_id, results)
        return
    try:
        answer = endpoint.write(job, body, _find_model_options(batch, job))
        read, made = endpoint.count_tokens(job, body)
    except Exception as error:  # a bug, too, must not keep the other lines from their answers
        if is_away(error):
            raise
        _write_problem(problems.answer_exception(error), endpoint, job, custom_id, results)
        return
    results.completed, results.input_tokens = results.completed + 1, results.input_tokens + read
    results.output_tokens += made
    results.answers.write(_encode_line(job, custom_id, (200, answer)))


def _find_model_options(batch: FileBatch, job: Job) -> Mapping[str, Any]:
    """Return the options of the model's entry as the line became a job.

    A version before did not keep them: the entry that this process knows is taken then.
    """
    kept = (batch.model_options or {}).get(job.model)
    if kept is None and (spec := get_last_spec(job.model)):
        return spec.options
    return kept or {}


def _find_reason(batch: FileBatch, line: Line) -> Status:
    """Return why a line has no job."""
    if line.index < batch.lines_read:
        return Status.FAILED
    return Status.CANCELLED if batch.status == BatchStatus.CANCELLING else Status.EXPIRED


def _make_job_problem(job: Job, endpoint: Endpoint, body: dict[str, Any]) -> HttpResponse:
    # A body that was refused was so in the client's words, and one that met a bug may meet it again.
    with contextlib.suppress(Exception):
        job.error_detail = endpoint.read(body).translate_field_names(job.error_detail)
    return problems.make_job_problem(job)


def _write_problem(answer: HttpResponse, endpoint: Endpoint, job: Job, custom_id: str, results: Results) -> None:
    """Write the status and the body with which the endpoint would have answered."""
    problem = problems.read_problem(answer) or {}
    document = openai.make_error_document(problem, inputs=endpoint.inputs)
    line = _encode_line(job, custom_id, (openai.translate_status(problem["status"]), codec.write_json(document)))
    results.failed += 1
    results.errors.write(line)


def _encode_line(job: Job | None, custom_id: str, answer: tuple[int, bytes] | None, error: object = None) -> bytes:
    line_id = (job.id if job else make_row_id()).hex
    response = b"null"
    if job and answer:
        response = b'{"status_code":%d,"request_id":"%s","body":%s}' % (answer[0], str(job.id).encode(), answer[1])
    return b'{"id":"batch_req_%s","custom_id":%s,"response":%s,"error":%s}\n' % (
        line_id.encode(),
        codec.write_json(custom_id),
        response,
        codec.write_json(error),
    )
