"""Files whose lines are requests, answered as a batch: see docs/guide/batches.md."""

from __future__ import annotations

import enum
import json
import os
import re
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

from batch_inference_client.errors import ClientError
from batch_inference_client.progress import Bar
from batch_inference_client.service import FIRST_S, Document, Service, retry_while_passing

FILE_ID = re.compile(r"file-[0-9a-f]{32}")
BATCH_ID = re.compile(r"batch_[0-9a-f]{32}")
LOOK_EVERY_S = 5.0  # at most; the first looks are sooner


class BatchEnd(enum.StrEnum):
    """A status of a batch that has ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


ENDED = tuple(BatchEnd)


class FileBatches:
    """The methods of the client for files whose lines are requests. Each of them raises `ClientError`."""

    service: Service
    patience_s: float

    def upload_file(self, path: str | os.PathLike[str]) -> Document:
        """Store a file of requests, which is read in pieces, and return its document, which has its `id`.

        An upload whose answer is lost is sent again. It may then be stored twice, until it expires.
        """
        return retry_while_passing(lambda: self.service.upload_file(Path(path)), limit_s=self.patience_s)

    def create_batch(
        self,
        file: str | os.PathLike[str],
        endpoint: str,
        *,
        window: str = "24h",
        metadata: Mapping[str, str] | None = None,
    ) -> Document:
        """Begin a batch of a file, given as its path or as the id of its upload, and return the batch."""
        file_id = str(file) if FILE_ID.fullmatch(str(file)) else self.upload_file(file)["id"]
        batch = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": window, "metadata": metadata}
        key = str(uuid.uuid4())
        return retry_while_passing(lambda: self.service.create_batch(batch, key=key), limit_s=self.patience_s)

    def batch(self, batch_id: str) -> Document:
        """Return a batch, which may have been created by another program."""
        return retry_while_passing(lambda: self.service.batch(batch_id), limit_s=self.patience_s)

    def cancel_batch(self, batch_id: str) -> Document:
        """Cancel a batch, and return it. What runs is still answered, and all answers are kept."""
        return retry_while_passing(lambda: self.service.cancel_batch(batch_id), limit_s=self.patience_s)

    def wait_for_batch(self, batch_id: str, *, progress: bool = False) -> Document:
        """Return a batch once it has ended. Its `status` says how."""
        batch, pause_s = self.batch(batch_id), FIRST_S
        with Bar(None, shown=progress, done=_count_answered(batch)) as bar:
            while True:
                counts = batch["request_counts"]
                bar.show(counts["total"], done=_count_answered(batch), errors=counts["failed"])
                if batch["status"] in ENDED:
                    return batch
                self.service.refuse_endless_wait()
                time.sleep(pause_s)
                batch, pause_s = self.batch(batch_id), min(2 * pause_s, LOOK_EVERY_S)

    def read_answers(self, batch_id: str) -> Iterator[Document]:
        """Wait for the end of a batch, and yield the lines of its output file, then those of its error file.

        Each line has the `custom_id` of its request. Raises `ClientError` if the file of requests was refused.
        """
        batch = self.wait_for_batch(batch_id)
        refuse_failed(batch)
        for name in ("output_file_id", "error_file_id"):
            if batch[name]:
                with self.open_file(batch[name]) as lines:
                    yield from map(json.loads, lines)

    def read_answers_so_far(self, batch_id: str) -> Iterator[Document]:
        """Yield the lines of a batch that have an answer now, as its output file has them at its end."""
        with self.open_output(batch_id) as lines:
            yield from map(json.loads, lines)

    def open_file(self, file_id: str) -> IO[bytes]:
        """Copy a file of the service to a temporary file, and return that, at its beginning.

        Thus whoever reads it slowly holds no connection.
        """
        return self._copy(lambda: self.service.file_content(file_id))

    def open_output(self, batch_id: str) -> IO[bytes]:
        """Copy the answers of a batch so far to a temporary file, and return that, at its beginning."""
        return self._copy(lambda: self.service.batch_output(batch_id))

    def _copy(self, read_pieces: Callable[[], Iterator[bytes]]) -> IO[bytes]:
        copy = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it

        def download() -> None:
            copy.seek(0)
            copy.truncate()
            for piece in read_pieces():
                copy.write(piece)

        try:
            retry_while_passing(download, limit_s=self.patience_s)
        except BaseException:
            copy.close()
            raise
        copy.seek(0)
        return copy


def refuse_failed(batch: Document) -> None:
    """Raise `ClientError` if a batch failed as a whole. It names the first lines that are wrong."""
    if batch["status"] != BatchEnd.FAILED:
        return
    errors = batch["errors"]["data"]
    shown = [f"line {error['line']}: {error['message']}" if error["line"] else error["message"] for error in errors[:3]]
    raise ClientError(f"The batch {batch['id']} failed. {' '.join(shown)}", code=errors[0]["code"])


def _count_answered(batch: Document) -> int:
    counts = batch["request_counts"]
    return int(counts["completed"] + counts["failed"])
