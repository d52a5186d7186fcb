"""The future of a job, which is one of the standard library and can also be awaited."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, wait
from typing import Any

from batch_inference_client.errors import JobError
from batch_inference_client.service import FINISHED, Document, JobStatus, StreamEvent


class JobFuture(Future[Any]):
    """The future of a job, whose result is the job's output.

    If the job has no output, `result()` raises `JobError` and `exception()` returns it. If the job was cancelled, both
    raise `CancelledError`.

    A wait that times out and an `await` that is cancelled leave the job alone: only `cancel()` ends it.
    """

    def __init__(
        self,
        job: Document,
        cancel: Callable[[str], Document],
        stream: Callable[[str, str], Iterator[StreamEvent]],
        refuse_endless_wait: Callable[[], None],
    ) -> None:
        super().__init__()
        self.id: str = job["id"]
        self.job = job  # the job as it was last seen
        self.was_running = False  # True if the job was running when `cancel` cancelled it
        self._cancel, self._stream, self._refuse_endless_wait = cancel, stream, refuse_endless_wait
        self._settling = threading.Lock()
        self._is_settled = False

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            self._refuse_endless_wait()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self.done():
            self._refuse_endless_wait()
        return super().exception(timeout)

    def cancel(self) -> bool:
        """Cancel the job. Return True if it is cancelled now.

        A running job is cancelled, too: its outcome is dropped, and `was_running` is true. Raises `ClientError`.
        """
        if not self.done():
            job = self._cancel(self.id)
            self.was_running = job["was_running"]
            self.settle(job)
        return self.cancelled()

    def stream(self, *, after: str = "") -> Iterator[StreamEvent]:
        """Return an iterator over events with the job's text as it is generated.

        It begins with the first character, or after the event whose id is `after`. Raises `JobError` if the job has no
        output, and `ClientError`.
        """
        return self._stream(self.id, after)

    def settle(self, job: Document) -> None:
        """Set the outcome of the job, if it is finished. Two threads may do so at the same time."""
        if job["status"] not in FINISHED:
            return
        if not self._begin_settlement():
            wait([self])
            return
        self.job = job
        if job["status"] == JobStatus.SUCCEEDED:
            self.set_result(job["output"])
        elif job["status"] == JobStatus.CANCELLED:
            super().cancel()
            self.set_running_or_notify_cancel()  # otherwise `concurrent.futures.wait` would not notice it
        else:
            self.set_exception(JobError.of(job))

    def fail(self, error: BaseException) -> None:
        """End the future with an error, as the outcome of the job will not become known."""
        if self._begin_settlement():
            self.set_exception(error)

    def _begin_settlement(self) -> bool:
        with self._settling:
            first, self._is_settled = not self._is_settled, True
            return first

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.done():
            loop = asyncio.get_running_loop()
            ended = loop.create_future()
            self.add_done_callback(lambda _: loop.is_closed() or loop.call_soon_threadsafe(_end, ended))
            yield from ended
        return self.result(timeout=0)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.job['status']}>"


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
