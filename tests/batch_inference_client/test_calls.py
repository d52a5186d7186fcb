"""Calls, futures and maps against the real service."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any
from unittest.mock import patch
from uuid import uuid4

from batch_inference_client import Client, ClientError, JobError, JobFuture, client, mapping
from tests import echo
from tests.conditions import PATIENCE_S, eventually
from tests.e2e.case import StackCase
from tests.ports import HOST
from tests.stack import ECHO

MODELS = f"""{ECHO}
[slow]
engine = "tests.echo:EchoEngine"
max_batch_size = 1
options = {{ gate = "held" }}
time_limit_s = 600

[unserved]
engine = "no.such.module:Engine"
"""


class CallTests(StackCase):
    options = {"models": MODELS, "replicas": 2}

    def setUp(self) -> None:
        self.client = self.enterContext(Client(f"http://{HOST}:{self.stack.port}", patience_s=PATIENCE_S))

    def running(self, *futures: JobFuture) -> None:
        """Wait until these run."""
        jobs = self.stack.jobs.filter(pk__in=[future.id for future in futures], status="running")
        eventually(lambda: jobs.count() == len(futures), "the jobs run")

    # Calls

    def test_an_input_and_a_list_of_several(self) -> None:
        self.assertEqual(self.client.run("echo", "text"), echo.expected("text"))
        self.assertEqual(self.client.run("echo", ["a", "b"]), [echo.expected("a"), echo.expected("b")])

    def test_a_failed_job_raises_what_it_failed_with(self) -> None:
        with self.assertRaises(JobError) as failed:
            self.client.run("echo", {"fail": "exception"})
        self.assertEqual((failed.exception.code, failed.exception.retryable), ("engine_error", False))
        self.assertIsNotNone(failed.exception.job_id)

    def test_what_is_not_taken_raises_the_service_s_words(self) -> None:
        for model, inputs, code in (("ekko", "x", "unknown_model"), ("echo", None, "invalid_input")):
            with self.subTest(model), self.assertRaises(ClientError) as refused:
                self.client.run(model, inputs)
            self.assertEqual(refused.exception.code, code)
            self.assertIsNotNone(refused.exception.request_id)

    def test_after_its_time_the_job_goes_on_and_is_found_again(self) -> None:
        self.hold()
        with patch.object(client, "GRACE_S", PATIENCE_S), self.assertRaises(TimeoutError) as late:
            self.client.run("slow", "x", timeout=0.01)
        job_id = str(late.exception).split()[2]
        self.stack.release()
        self.assertEqual(self.client.job(job_id).result(PATIENCE_S), echo.expected("x"))

    def test_the_same_key_is_the_same_job(self) -> None:
        key = str(uuid4())
        first, second = (self.client.submit("echo", "x", key=key) for _ in range(2))
        self.assertEqual(first.id, second.id)
        self.assertEqual(first.result(PATIENCE_S), second.result(PATIENCE_S))

    # Futures

    def test_the_standard_library_waits_for_hundreds_on_a_few_connections(self) -> None:
        others = set(threading.enumerate())
        futures: dict[concurrent.futures.Future[Any], int] = {
            self.client.submit("echo", f"text {number}"): number for number in range(300)
        }
        found = {futures[done]: done.result() for done in concurrent.futures.as_completed(futures, timeout=PATIENCE_S)}
        self.assertEqual(found, {number: echo.expected(f"text {number}") for number in range(300)})
        self.assertLessEqual(len(set(threading.enumerate()) - others), 4)

    def test_a_quick_job_is_not_kept_waiting_by_slow_ones(self) -> None:
        self.hold()
        slow = self.client.submit("slow", "x")
        self.running(slow)
        self.assertEqual(self.client.submit("echo", "quick").result(PATIENCE_S), echo.expected("quick"))
        both = [slow, self.client.submit("echo", "b")]
        done, waiting = concurrent.futures.wait(both, PATIENCE_S, "FIRST_COMPLETED")
        self.assertEqual((len(done), waiting), (1, {slow}))

    def test_callbacks_get_the_finished_future(self) -> None:
        outputs: list[Any] = []
        self.client.submit("echo", "x").add_done_callback(lambda future: outputs.append(future.result()))
        self.assertEqual(eventually(lambda: outputs), [echo.expected("x")])

    def test_what_is_cancelled_before_it_runs_and_while_it_runs(self) -> None:
        self.hold()
        running, also = (self.client.submit("slow", text) for text in ("a", "b"))
        self.running(running, also)
        queued = self.client.submit("slow", "x")
        for future, was_running in ((queued, False), (running, True), (also, True)):
            self.assertTrue(future.cancel())
            self.assertEqual((future.cancelled(), future.was_running), (True, was_running))
            with self.assertRaises(concurrent.futures.CancelledError):
                future.result()
        self.assertEqual(len(concurrent.futures.wait([queued, running], PATIENCE_S).done), 2)

    def test_what_is_finished_cannot_be_cancelled(self) -> None:
        future = self.client.submit("echo", "x")
        future.result(PATIENCE_S)
        self.assertFalse(future.cancel())
        service = self.client.service
        queued = {"id": future.id, "status": "queued"}
        unseen = JobFuture(queued, service.cancel, lambda *_: iter(()), service.refuse_endless_wait)
        self.assertFalse(unseen.cancel())
        self.assertEqual(unseen.result(0), echo.expected("x"))

    def test_what_another_program_cancels_is_cancelled(self) -> None:
        future = self.client.submit("unserved", "[MASK]")
        self.client.cancel(future.id)
        with self.assertRaises(concurrent.futures.CancelledError):
            future.result(PATIENCE_S)

    def test_a_wait_that_is_over_leaves_the_job_alone(self) -> None:
        self.hold()
        future = self.client.submit("slow", "x")
        with self.assertRaises(TimeoutError):
            future.result(0.01)
        self.stack.release()
        self.assertEqual(future.result(PATIENCE_S), echo.expected("x"))

    def test_a_job_that_is_not_there(self) -> None:
        with self.assertRaises(ClientError) as missing:
            self.client.job(str(uuid4()))
        self.assertEqual(missing.exception.code, "job_not_found")

    def test_a_closed_client_leaves_nobody_waiting(self) -> None:
        with Client(f"http://{HOST}:{self.stack.port}") as client:
            future = client.submit("unserved", "[MASK]")
        with self.assertRaises(ClientError) as closed:
            future.result(PATIENCE_S)
        self.assertEqual(closed.exception.code, "closed")

    # Maps

    def test_answers_come_in_order_with_errors_in_their_places(self) -> None:
        inputs = ["a", {"fail": "exception"}, None, float("nan"), "b", object(), *map(str, range(50))]
        answers = list(self.client.map("echo", inputs))
        self.assertEqual([answers[place] for place in (0, 4)], [echo.expected("a"), echo.expected("b")])
        codes = {place: answer.code for place, answer in enumerate(answers) if isinstance(answer, JobError)}
        self.assertEqual(codes, {1: "engine_error", 2: "invalid_input", 3: "invalid_input", 5: "invalid_input"})
        self.assertEqual(answers[6:], [echo.expected(str(number)) for number in range(50)])

    def test_none_of_many_is_taken(self) -> None:
        answers = list(self.client.map("echo", [None] * 30))
        self.assertEqual([answer.code for answer in answers], ["invalid_input"] * 30)

    def test_not_in_order_answers_come_with_their_numbers(self) -> None:
        found = dict(self.client.map("echo", map(str, range(100)), ordered=False, in_flight=40))
        self.assertEqual(found, {number: echo.expected(str(number)) for number in range(100)})

    def test_no_more_is_read_than_may_be_in_flight(self) -> None:
        read = 0

        def inputs() -> Iterator[str]:
            nonlocal read
            for number in itertools.count():
                read += 1
                yield str(number)

        answers = self.client.map("echo", inputs(), in_flight=40)
        for given in range(1, 200):
            next(answers)
            self.assertLessEqual(read - given, 40 + 10 + 1)  # and a bulk that is read to find its end

    def test_a_name_makes_the_same_jobs_and_other_inputs_are_refused(self) -> None:
        before, name = self.stack.jobs.count(), str(uuid4())
        inputs = [f"{name} {number}" for number in range(60)]
        first = list(itertools.islice(self.client.map("echo", inputs, name=name, in_flight=40), 5))
        again = list(self.client.map("echo", inputs, name=name, in_flight=40))
        self.assertEqual((again[:5], self.stack.jobs.count() - before), (first, 60))
        with self.assertRaises(ClientError) as refused:
            list(self.client.map("echo", [*inputs[:15], "another", *inputs[16:]], name=name, in_flight=40))
        self.assertEqual(refused.exception.code, "other_inputs")
        self.assertIn("from number 10 on", str(refused.exception))

    def test_what_is_removed_meanwhile_has_an_error_in_its_place(self) -> None:
        name = str(uuid4())
        list(self.client.map("echo", ["a", "b", "c"], name=name))
        first = self.stack.jobs.filter(bulk__idempotency_key__contains=name, bulk_index=1)
        first.delete()
        answers = list(self.client.map("echo", ["a", "b", "c"], name=name))
        self.assertEqual([getattr(answer, "code", "") for answer in answers], ["", "job_gone", ""])

    def test_a_map_of_nothing(self) -> None:
        self.assertEqual(list(self.client.map("echo", [])), [])

    def test_a_model_that_is_not_there_ends_it(self) -> None:
        with self.assertRaises(ClientError) as unknown:
            list(self.client.map("ekko", ["x"]))
        self.assertEqual(unknown.exception.code, "unknown_model")

    def test_what_the_iterator_raises_is_raised(self) -> None:
        def inputs() -> Iterator[str]:
            yield "a"
            raise KeyError("mine")

        with self.assertRaises(KeyError):
            list(self.client.map("echo", inputs()))

    # Awaited

    def test_the_twins(self) -> None:
        async def inputs() -> AsyncIterator[str]:
            for number in range(20):
                yield str(number)

        async def main() -> None:
            self.assertEqual(await self.client.arun("echo", "x"), echo.expected("x"))
            outputs = await asyncio.gather(*(self.client.arun("echo", str(number)) for number in range(200)))
            self.assertEqual(outputs, [echo.expected(str(number)) for number in range(200)])
            mapped = [answer async for answer in self.client.amap("echo", inputs(), in_flight=8)]
            self.assertEqual(mapped, [echo.expected(str(number)) for number in range(20)])
            self.assertEqual([each async for each in self.client.amap("echo", ["a"])], [echo.expected("a")])
            future = await self.client.asubmit("echo", "x")
            self.assertEqual(await (await self.client.ajob(future.id)), echo.expected("x"))

        asyncio.run(main())

    def test_an_await_that_is_cancelled_leaves_the_job_alone(self) -> None:
        self.hold()

        async def main() -> None:
            future = await self.client.asubmit("slow", "x")
            with self.assertRaises(TimeoutError):
                await asyncio.wait_for(future, 0.01)
            self.stack.release()
            self.assertEqual(await future, echo.expected("x"))
            cancelled = await self.client.asubmit("unserved", "[MASK]")
            await self.client.acancel(cancelled.id)
            with self.assertRaises(concurrent.futures.CancelledError):
                await cancelled

        asyncio.run(main())

    def test_failures_are_raised_where_they_are_awaited(self) -> None:
        with self.assertRaises(JobError):
            asyncio.run(self.client.arun("echo", {"fail": "exception"}))
        with self.assertRaises(TimeoutError):
            asyncio.run(self.client.arun("unserved", "x", timeout=0.05))


class NarrowTests(StackCase):
    """A service with little room."""

    options = {
        "models": f"{ECHO}\nmax_queued = 20\n",
        "environment": {"MAX_LOW_QUEUED": "20", "MAX_BULK_INPUTS": "50", "MAX_BODY_BYTES": "20000"},
    }

    def test_bulks_are_made_smaller_and_wait_for_room(self) -> None:
        with Client(f"http://{HOST}:{self.stack.port}", patience_s=PATIENCE_S) as client:
            inputs = [f"text {number}" for number in range(300)] + ["x" * 19_000]
            with patch.object(mapping, "BULK", 100):
                answers = list(client.map("echo", inputs))
        self.assertEqual(answers, [echo.expected(text) for text in inputs])
        self.assertEqual(self.stack.jobs.count(), 301)
