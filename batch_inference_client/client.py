"""The client: it runs one input, returns a future, streams a text or maps many inputs, each also for asyncio."""

from __future__ import annotations

import asyncio
import functools
import math
import os
import re
import threading
import time
import uuid
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sized
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, Self, TypeVar

from batch_inference_client import stream
from batch_inference_client.errors import ClientError, JobError
from batch_inference_client.file_batches import BATCH_ID, FileBatches
from batch_inference_client.futures import JobFuture
from batch_inference_client.http import Http
from batch_inference_client.mapping import Answer, Map, encode_inputs
from batch_inference_client.progress import Bar
from batch_inference_client.retrieval import Retrieval
from batch_inference_client.service import Document, Service, StreamEvent, retry_while_passing
from batch_inference_client.watch import Watch

T = TypeVar("T")

NAME = re.compile(r"[\x21-\x7e]{1,200}")
LONGEST_WAIT_S = 20.0  # of the request that submits; after it the client waits for the job together with others
ASYNC_THREADS = 8  # that requests of asyncio may take at once; an `await` of a job takes none
PATIENCE_S = 60.0
GRACE_S = 1.0  # after its timeout in which a call may still be answered


class BaseClient(Retrieval, FileBatches):
    """A client of a `Service`, which any number of threads may use at the same time.

    A call is tried again for `patience_s` seconds while the service is away, is full, or asks the client to wait.
    """

    def __init__(self, service: Service, *, patience_s: float = PATIENCE_S) -> None:
        self.service, self.patience_s = service, patience_s
        self._start()
        clients.add(self)

    def _start(self) -> None:
        self._watch = Watch(self.service, patience_s=self.patience_s)
        self._threads = ThreadPoolExecutor(ASYNC_THREADS, thread_name_prefix="inference-client-async")

    def start_anew(self) -> None:
        """Begin anew in a process that was forked.

        That process has none of its parent's threads, and must not use its parent's connections.
        """
        self.service.reconnect()
        self._start()

    def run(self, model: str, inputs: object, *, timeout: float | None = None, **options: Any) -> Any:
        """Run a model on one input, or on a list of several, and return the output.

        The output of a list is a list. `options` are those of `submit`.

        Raises `JobError` if the job has no output, and `ClientError` if the service did not accept it. Raises
        `TimeoutError` after `timeout` seconds; the job then goes on.
        """
        began_at = time.monotonic()
        wait_s = LONGEST_WAIT_S if timeout is None else min(timeout, LONGEST_WAIT_S)
        future = self._make_future(self._submit(model, inputs, wait_s=wait_s, timeout=timeout, **options))
        try:
            return future.result(None if timeout is None else max(0.0, began_at + timeout - time.monotonic()))
        except TimeoutError:
            if future.done():
                raise
            raise _make_timeout_error(future, timeout) from None
        except CancelledError:
            raise JobError.of(future.job) from None

    def submit(self, model: str, inputs: object, **options: Any) -> JobFuture:
        """Submit a job, and return its future once the job is stored.

        `options` are `parameters`, `priority` (a word), `expires_in` (seconds), `webhook`, and `key`,
        an idempotency key of yours. Raises `ClientError`.
        """
        return self._make_future(self._submit(model, inputs, **options))

    def stream(self, model: str, inputs: object, **options: Any) -> Iterator[StreamEvent]:
        """Submit a job, and return an iterator over events with its text as it is generated.

        The last event is "end", whose `job` has the output. If the connection breaks off, the client reads on by
        itself. `options` are those of `submit`. Raises `JobError` if the job has no output, and `ClientError`.
        """
        return self._follow_events(self._submit(model, inputs, **options)["id"])

    def job(self, job_id: str) -> JobFuture:
        """Return the future of a job that was submitted before, also by another program. Raises `ClientError`."""
        return self._make_future(self._retry_call(lambda: self.service.job(job_id)))

    def map(
        self,
        model: str,
        inputs: Iterable[Any],
        *,
        parameters: Mapping[str, Any] | None = None,
        ordered: bool = True,
        name: str | None = None,
        in_flight: int = 4000,
        priority: str = "low",
        expires_in: float | None = None,
        progress: bool = False,
    ) -> Iterator[Any]:
        """Run a model on many inputs, and yield the output of each one in order.

        An input without an output has its `JobError` in that place. If not `ordered`, it yields pairs of an input's
        number, from 0 on, and its output or `JobError`, as they come.

        At most `in_flight` inputs are read ahead. A map with a `name` can be resumed: a program that was killed calls
        it again with the same name, inputs, `parameters` and `in_flight`, and no input runs twice while the jobs are
        kept. Raises `ClientError`.
        """
        encoded = (encode_inputs(value, parameters) for value in inputs)
        terms = {"model": model, "priority": priority, **({"expires_in": expires_in} if expires_in is not None else {})}
        batches = self.map_encoded(encoded, terms, name=name, in_flight=in_flight, ordered=ordered)
        total = len(inputs) if isinstance(inputs, Sized) else None
        with Bar(total, shown=progress) as bar:
            for batch in batches:
                bar.add(batch)
                for place, answer in batch:
                    yield answer if ordered else (place, answer)

    def map_encoded(
        self,
        encoded: Iterable[Any],
        terms: Mapping[str, Any],
        *,
        name: str | None = None,
        in_flight: int = 4000,
        ordered: bool = True,
        skip: int = 0,
    ) -> Iterator[list[tuple[int, Answer]]]:
        """Do as `map` does with inputs that `encode_inputs` made, and yield batches of answers with their places.

        The first `skip` inputs are only compared with those of the earlier run.
        """
        if name is not None and not NAME.fullmatch(name):
            raise ClientError("name: must be 1 to 200 visible ASCII characters.", code="bad_request")
        if in_flight < 1:
            raise ClientError("in_flight: must be 1 or more.", code="bad_request")
        return Map(
            service=self.service,
            encoded=encoded,
            terms=terms,
            name=name or str(uuid.uuid4()),
            in_flight=in_flight,
            ordered=ordered,
            patience_s=self.patience_s,
            skip=skip,
        ).batches()

    def cancel(self, id: str) -> Document:
        """Cancel a job, a batch, or all jobs of a bulk that are not finished, and return it. Raises `ClientError`."""
        if BATCH_ID.fullmatch(id):
            return self.cancel_batch(id)
        return self._try_job_or_bulk(id, self.service.cancel, self.service.cancel_bulk)

    def look(self, id: str) -> Document:
        """Return a job, or the progress of a bulk or a batch, as docs describe them. Raises `ClientError`."""
        if BATCH_ID.fullmatch(id):
            return self.batch(id)
        return self._try_job_or_bulk(id, self.service.job, self.service.bulk)

    def models(self) -> list[Document]:
        """Return the models that are served, as docs/reference/api.md describes them. Raises `ClientError`."""
        return self._retry_call(self.service.models)

    def ready(self) -> Document:
        """Return a document whose `ready` is true if all models are served, and whose `reasons` say why if not.

        Raises `ClientError`.
        """
        return self._retry_call(self.service.ready)

    # The same for asyncio

    async def arun(self, model: str, inputs: object, *, timeout: float | None = None, **options: Any) -> Any:
        """Do as `run` does, for asyncio."""
        future: JobFuture | None = None
        try:
            async with asyncio.timeout(timeout):
                future = await self.asubmit(model, inputs, **options)
                return await future
        except TimeoutError:
            if future is None or future.done():
                raise
            raise _make_timeout_error(future, timeout) from None
        except CancelledError:
            if future is None:
                raise
            raise JobError.of(future.job) from None

    async def asubmit(self, model: str, inputs: object, **options: Any) -> JobFuture:
        """Do as `submit` does, for asyncio."""
        return await self._run_in_thread(functools.partial(self.submit, model, inputs, **options))

    async def ajob(self, job_id: str) -> JobFuture:
        """Do as `job` does, for asyncio."""
        return await self._run_in_thread(functools.partial(self.job, job_id))

    async def amap(self, model: str, inputs: Iterable[Any] | AsyncIterable[Any], **options: Any) -> AsyncIterator[Any]:
        """Do as `map` does, for asyncio.

        The iterator of `map` runs in a thread. `inputs` may be an asynchronous iterable.
        """
        loop = asyncio.get_running_loop()
        source = _pull_items(inputs, loop) if isinstance(inputs, AsyncIterable) else inputs
        async for answer in _iterate_in_thread(self.map(model, source, **options)):
            yield answer

    async def astream(self, model: str, inputs: object, **options: Any) -> AsyncIterator[StreamEvent]:
        """Do as `stream` does, for asyncio."""
        async for event in _iterate_in_thread(await self._run_in_thread(lambda: self.stream(model, inputs, **options))):
            yield event

    async def acancel(self, id: str) -> Document:
        """Do as `cancel` does, for asyncio."""
        return await self._run_in_thread(functools.partial(self.cancel, id))

    async def _run_in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    # The end of a client

    def close(self) -> None:
        """Close the client. Futures that are not done end with an error, and their jobs go on."""
        self._watch.close()
        self._threads.shutdown(wait=False)
        self.service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _submit(
        self,
        model: str,
        inputs: object,
        *,
        wait_s: float = 0.0,
        timeout: float | None = None,
        parameters: Mapping[str, Any] | None = None,
        priority: str | None = None,
        expires_in: float | None = None,
        webhook: str | None = None,
        key: str | None = None,
    ) -> Document:
        given = {"parameters": parameters, "priority": priority, "expires_in": expires_in, "webhook": webhook}
        job = {"model": model, "inputs": inputs, **{name: value for name, value in given.items() if value is not None}}
        own_key = key or str(uuid.uuid4())
        until = math.inf if timeout is None else time.monotonic() + timeout

        def send() -> Document:
            left_s = max(0.0, until - time.monotonic())
            return self.service.submit(job, key=own_key, wait_s=min(wait_s, left_s), answer_s=left_s + GRACE_S)

        return retry_while_passing(send, limit_s=self.patience_s, until=until)

    def _follow_events(self, job_id: str, after: str = "") -> Iterator[StreamEvent]:
        return stream.follow_events(self.service, job_id, after=after, patience_s=self.patience_s)

    def _make_future(self, job: Document) -> JobFuture:
        service = self.service
        future = JobFuture(
            job,
            lambda job_id: self._retry_call(lambda: service.cancel(job_id)),
            self._follow_events,
            service.refuse_endless_wait,
        )
        future.settle(job)
        if not future.done():
            service.call_once_stored(
                lambda: self._watch.add(future), otherwise=lambda: future.fail(_make_undone_error(future.id))
            )
        return future

    def _try_job_or_bulk(self, id: str, job: Callable[[str], Document], bulk: Callable[[str], Document]) -> Document:
        try:
            return self._retry_call(lambda: job(id))
        except ClientError as error:
            if error.code != "job_not_found":
                raise
            not_a_job = error
        try:
            return self._retry_call(lambda: bulk(id))
        except ClientError as error:
            raise not_a_job if error.code == "bulk_not_found" else error from None

    def _retry_call(self, call: Callable[[], T]) -> T:
        return retry_while_passing(call, limit_s=self.patience_s)


class Client(BaseClient):
    """A client of the service at `url`, with an API key if the service wants one.

    A call is tried again for `patience_s` seconds while the service is away, is full, or asks the client to wait.
    """

    def __init__(self, url: str, key: str = "", *, patience_s: float = PATIENCE_S) -> None:
        super().__init__(Http(url, key), patience_s=patience_s)


clients: weakref.WeakSet[BaseClient] = weakref.WeakSet()


def _start_clients_anew() -> None:
    for client in list(clients):
        client.start_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_clients_anew)


def _make_undone_error(job_id: str) -> JobError:
    return JobError(
        f"There is no job {job_id}: the transaction that submitted it was undone.", code="job_not_found", job_id=job_id
    )


def _make_timeout_error(future: JobFuture, timeout: float | None) -> TimeoutError:
    message = f"The job {future.id} is not finished after {timeout:g} s."
    return TimeoutError(f"{message} It goes on: client.job({future.id!r}).result().")


async def _iterate_in_thread(items: Iterator[T]) -> AsyncIterator[T]:
    """Yield the items of an iterator that runs in a thread of its own.

    A caller that is cancelled leaves the thread in the middle of an item, which may never come. Nothing waits for the
    end of the thread.
    """
    end: Any = object()
    futures = SimpleQueue[Future[T] | None]()

    def answer() -> None:
        while (item := futures.get()) is not None:
            try:
                item.set_result(next(items, end))
            except BaseException as error:
                item.set_exception(error)

    threading.Thread(target=answer, name="inference-client-iterator", daemon=True).start()
    try:
        while True:
            item = Future[T]()
            item.set_running_or_notify_cancel()
            futures.put(item)
            if (value := await asyncio.wrap_future(item)) is end:
                return
            yield value
    finally:
        futures.put(None)


def _pull_items(inputs: AsyncIterable[Any], loop: asyncio.AbstractEventLoop) -> Iterator[Any]:
    """Yield the items of an asynchronous iterable in a thread beside its loop."""
    iterator = aiter(inputs)
    end = object()
    while (value := asyncio.run_coroutine_threadsafe(_get_next(iterator, end), loop).result()) is not end:
        yield value


async def _get_next(iterator: AsyncIterator[Any], end: object) -> Any:
    return await anext(iterator, end)
