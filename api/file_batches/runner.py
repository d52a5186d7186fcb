"""The turns of batches, each a little work, so that no batch waits for another one's fifty thousand lines.

A turn begins with a lease of the batch, and changes its row only from the state that it found. Several processes may
run batches, and one that dies in a turn leaves nothing that the next turn does not mend.
"""

from __future__ import annotations

import datetime
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any
from uuid import UUID, uuid4

from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from api.errors.problems import ApiError
from api.file_batches.batches import remove_old_batches
from api.file_batches.files import find_file, open_content, purge_old_files
from api.file_batches.line_submitter import LineSubmitter, Overtaken
from api.file_batches.results import Results, store_results_file, write_results
from api.file_batches.validation import check_file
from api.models import UNFINISHED, BatchStatus, FileBatch, FileState, StoredFile
from inference import row_locks
from inference.connection_retries import is_away
from inference.errors import InferenceError, UnknownModel
from inference.models import WAITING, Bulk, Job, Status
from inference.store import transitions

logger = logging.getLogger(__name__)

LEASE = datetime.timedelta(seconds=60)
RENEWED_EVERY_S = 15.0
TURN_S = 1.0  # seconds of one batch, then it is another batch's turn
FIRST_REST_S, LONGEST_REST_S = 1.0, 8.0  # a batch that waits is looked at less and less often
GIVEN_UP = datetime.timedelta(days=1)  # after its window, a batch that fails in each of its turns
CANCELLED_AT_ONCE = 500
SWEPT_EVERY_S = 60.0
MISSING = "The input file is not there any more: it was deleted, or its storage lost it."


class Stopping(Exception):
    """Raised in a turn when the process is to end."""


@dataclass(slots=True)
class Rest:
    """The pause of a batch for which nothing can be done."""

    until: float = 0.0  # by the monotonic clock
    pause_s: float = 0.0
    seen: Any = None  # its status and lines after the last turn
    reason: str = ""  # why it waited last


class BatchRunner:
    """The runner of all batches in this process."""

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._id = uuid4()
        self._rests: dict[UUID, Rest] = {}  # by batch
        self._submitters: dict[UUID, tuple[LineSubmitter, IO[bytes]]] = {}  # by batch in progress, with its open file
        self._swept_at = float("-inf")

    def run_round(self) -> bool:
        """Give each unfinished batch a turn; return True if one of them can go on at once.

        Raises what the database raises if it is away.
        """
        self._sweep()
        found = list(FileBatch.objects.filter(status__in=UNFINISHED).order_by("pk").values_list("pk", flat=True))
        for gone in self._rests.keys() - set(found):
            self._close_submitter(gone)
            del self._rests[gone]
        turns = [self._take_turn_or_rest(batch_id) for batch_id in found if not self._stopping.is_set()]
        return any(turns)

    def close(self) -> None:
        for batch_id in list(self._submitters):
            self._close_submitter(batch_id)

    def _take_turn_or_rest(self, batch_id: UUID) -> bool:
        """Give a batch a turn, unless it rests after one in which nothing could be done. Returns what the turn does."""
        rest = self._rests.setdefault(batch_id, Rest())
        if time.monotonic() < rest.until:
            return False
        goes_on = self._take_turn(batch_id)
        lines = FileBatch.objects.filter(pk=batch_id).values_list("status", "lines_read").first()
        rest.pause_s = 0.0 if goes_on or lines != rest.seen else min(LONGEST_REST_S, rest.pause_s * 2 or FIRST_REST_S)
        rest.seen, rest.until = lines, time.monotonic() + rest.pause_s
        return goes_on

    def _sweep(self) -> None:
        if time.monotonic() > self._swept_at + SWEPT_EVERY_S:
            purge_old_files()
            remove_old_batches()
            self._swept_at = time.monotonic()

    def _take_turn(self, batch_id: UUID) -> bool:
        free = Q(lease_until=None) | Q(lease_until__lt=Now()) | Q(lease_until__gt=Now() + 2 * LEASE)  # clock set back
        lease = {"lease_until": Now() + LEASE, "lease_by": self._id}
        if not FileBatch.objects.filter(free, pk=batch_id).update(**lease):
            return False
        batch = FileBatch.objects.select_related("owner", "input_file").get(pk=batch_id)
        leased_until = None
        try:
            return self._step(batch)
        except (Overtaken, Stopping):
            return False
        except Exception as error:
            if is_away(error):
                raise
            if isinstance(error, InferenceError) and (error.retryable or isinstance(error, UnknownModel)):
                self._log_wait(batch, str(error))
                return False
            logger.exception("batch=%s failed in its turn", batch.public_id)
            leased_until = Now() + LEASE  # the others go on, and this one is tried again then
            self._give_up_if_expired(batch)
            return False
        finally:
            FileBatch.objects.filter(pk=batch_id, lease_by=self._id).update(lease_until=leased_until)

    def _log_wait(self, batch: FileBatch, reason: str) -> None:
        """Log why a batch waits, once for each reason and not in each round."""
        rest = self._rests[batch.pk]
        if rest.reason != reason:
            logger.info("batch=%s waits: %s", batch.public_id, reason)
        rest.reason = reason

    def _step(self, batch: FileBatch) -> bool:
        match batch.status:
            case BatchStatus.VALIDATING:
                return self._validate(batch)
            case BatchStatus.IN_PROGRESS:
                return self._go_on(batch)
            case BatchStatus.CANCELLING:
                return self._cancel(batch)
        return self._finish(batch)

    def _validate(self, batch: FileBatch) -> bool:
        """Check the file. The batch is then in progress, or has failed."""
        try:
            with _open_input_file(batch) as file:
                found = check_file(file, batch.endpoint, self._make_keep_on(batch))
        except FileNotFoundError:
            return self._fail(batch, "input_file_missing", MISSING)
        if found.errors:
            self._end(batch, status=BatchStatus.FAILED, errors=found.errors, model=found.model)
            return False
        begun = {"status": BatchStatus.IN_PROGRESS, "in_progress_at": Now()}
        with transaction.atomic():
            FileBatch.objects.filter(pk=batch.pk, status=BatchStatus.VALIDATING).update(
                **begun, total=found.total, model=found.model
            )
            Bulk.objects.filter(pk=batch.pk).update(total=found.total)
        logger.info("batch=%s has %d lines", batch.public_id, found.total)
        return True

    def _go_on(self, batch: FileBatch) -> bool:
        """Make jobs of the next lines; once all lines have ended, or time is over, the batch is finalized."""
        is_over = FileBatch.objects.filter(pk=batch.pk, expires_at__lte=Now()).exists()
        if batch.lines_read < batch.total and not is_over:
            return self._submit_lines(batch)
        if is_over:
            transitions.expire_jobs()
        if _has_waiting_jobs(batch.pk):
            return False
        self._close_submitter(batch.pk)
        finalizing = {"status": BatchStatus.FINALIZING, "finalizing_at": Now()}
        return bool(FileBatch.objects.filter(pk=batch.pk, status=BatchStatus.IN_PROGRESS).update(**finalizing))

    def _submit_lines(self, batch: FileBatch) -> bool:
        give_up_at = time.monotonic() + TURN_S
        try:
            submitter, _ = self._submitters.get(batch.pk) or self._open_submitter(batch)
            while has_room := submitter.store_portion(batch):
                if time.monotonic() > give_up_at or batch.lines_read >= batch.total or self._stopping.is_set():
                    break
        except FileNotFoundError:
            return self._fail(batch, "input_file_missing", MISSING)
        return has_room

    def _cancel(self, batch: FileBatch) -> bool:
        """Cancel what has not begun. What runs is answered, as its cost is spent."""
        self._close_submitter(batch.pk)
        queued = Job.objects.filter(bulk=batch.pk, status=Status.QUEUED).order_by("pk").values_list("pk", flat=True)
        if ids := list(queued[:CANCELLED_AT_ONCE]):
            transitions.cancel_jobs_with_parts(ids)
            return True
        if batch.in_progress_at is None:  # it was never checked, and has no jobs
            self._end(batch, status=BatchStatus.CANCELLED)
            return False
        return not _has_waiting_jobs(batch.pk) and self._finish(batch)

    def _finish(self, batch: FileBatch) -> bool:
        """Write the files of the answers, and end the batch."""
        try:
            with _open_input_file(batch) as file:
                results = write_results(batch, file, self._make_keep_on(batch))
        except FileNotFoundError:
            return self._fail(batch, "input_file_missing", MISSING)
        try:
            answers = store_results_file(batch, results.answers, "output")
            errors = store_results_file(batch, results.errors, "error")
        finally:
            results.close()  # a file that was stored beside one that was not is removed with the old ones
        self._end(
            batch,
            status=_find_end(batch, results),
            usage=results.usage,
            completed=results.completed,
            failed=results.failed,
            output_file=answers,
            error_file=errors,
        )
        return False

    def _fail(self, batch: FileBatch, code: str, message: str) -> bool:
        error = {"code": code, "message": message, "param": None, "line": None}
        self._end(batch, status=BatchStatus.FAILED, errors=[error])
        return False

    def _end(self, batch: FileBatch, **changes: Any) -> None:
        """End a batch, unless another process has changed its status. Its files are seen from then on."""
        with transaction.atomic():
            if not FileBatch.objects.filter(pk=batch.pk, status=batch.status).update(ended_at=Now(), **changes):
                raise Overtaken
            files = [file.pk for name in ("output_file", "error_file") if (file := changes.get(name))]
            row_locks.update_rows(StoredFile.objects.filter(pk__in=files), state=FileState.STORED)
            Bulk.objects.filter(pk=batch.pk).update(is_open=False)
        logger.info("batch=%s %s", batch.public_id, changes["status"])

    def _give_up_if_expired(self, batch: FileBatch) -> None:
        if FileBatch.objects.filter(pk=batch.pk, expires_at__lte=Now() - GIVEN_UP).exists():
            self._fail(batch, "internal", "The service failed on this batch. Its operator finds the reason in the log.")

    def _make_keep_on(self, batch: FileBatch) -> Callable[[], None]:
        """Return the function that long work calls: it renews the lease, and raises once the work is not needed."""
        renewed_at = time.monotonic()
        status = batch.status

        def keep_on() -> None:
            nonlocal renewed_at
            if self._stopping.is_set():
                raise Stopping
            if time.monotonic() < renewed_at + RENEWED_EVERY_S:
                return
            leased = FileBatch.objects.filter(pk=batch.pk, status=status, lease_by=self._id)
            if not leased.update(lease_until=Now() + LEASE):
                raise Overtaken
            renewed_at = time.monotonic()

        return keep_on

    def _open_submitter(self, batch: FileBatch) -> tuple[LineSubmitter, IO[bytes]]:
        file = _open_input_file(batch)
        self._submitters[batch.pk] = LineSubmitter(batch, file), file
        return self._submitters[batch.pk]

    def _close_submitter(self, batch_id: UUID) -> None:
        if opened := self._submitters.pop(batch_id, None):
            opened[1].close()


def _has_waiting_jobs(batch_id: UUID) -> bool:
    return Job.objects.filter(bulk=batch_id, status__in=WAITING).exists()


def _find_end(batch: FileBatch, results: Results) -> BatchStatus:
    if batch.status == BatchStatus.CANCELLING:
        return BatchStatus.CANCELLED
    return BatchStatus.EXPIRED if results.expired else BatchStatus.COMPLETED


def _open_input_file(batch: FileBatch) -> IO[bytes]:
    """Open the input file. Raises `FileNotFoundError`."""
    stored = batch.input_file_id and find_file(batch.input_file_id)
    if not stored:
        raise FileNotFoundError(batch.public_id)
    try:
        return open_content(stored)
    except ApiError:
        raise FileNotFoundError(batch.public_id) from None
