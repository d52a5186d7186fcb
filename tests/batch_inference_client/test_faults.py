"""What befalls a map, a future and a command: answers that are none, slow callers, forks, files of others."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import TestCase
from unittest.mock import Mock, patch

from batch_inference_client import BaseClient, Client, ClientError, JobError
from batch_inference_client.command import encode_lines, main, make_parser, open_answers_file
from batch_inference_client.service import MOST_IDS, Service
from tests.batch_inference_client import pauses
from tests.batch_inference_client.resume import ROOT
from tests.batch_inference_client.test_trouble import FULL, JOB, Scripted, Server
from tests.conditions import PATIENCE_S

QUEUED = {**JOB, "status": "queued", "output": None}
OTHERS: Scripted = (200, {"ok": True}, {})  # of another service
BEGAN_AT = 1000.0  # by a clock that goes on as who sleeps says
NOTHING: dict[str, Any] = {"items": [], "missing": [], "left": 1}


def finished(job_id: str) -> dict[str, Any]:
    return {**JOB, "id": job_id, "output": f"output of {job_id}"}


def bulk(*ids: str, **counts: int) -> dict[str, Any]:
    jobs = [{"index": index, "id": job_id} for index, job_id in enumerate(ids)]
    return {"id": "b", "counts": counts or {"queued": len(ids)}, "jobs": jobs, "refused": []}


class AnswerTests(TestCase):
    def setUp(self) -> None:
        self.slept = pauses.recorded(self)

    def test_another_service_that_speaks_json_is_distinguished_from_this_one(self) -> None:
        calls: dict[str, Callable[[Client], Any]] = {
            "run": lambda client: client.run("echo", "x"),
            "a future": lambda client: client.submit("echo", "x").result(PATIENCE_S),
            "map": lambda client: list(client.map("echo", ["x"])),
            "status": lambda client: client.ready(),
            "models": lambda client: client.models(),
        }
        for name, call in calls.items():
            script = [(202, QUEUED, {}), OTHERS] if name == "a future" else [OTHERS]
            with self.subTest(name), Server(*script) as server, Client(server.url) as client:
                with self.assertRaises(ClientError) as raised:
                    call(client)
                self.assertEqual(raised.exception.code, "no_answer")

    def test_a_time_to_try_again_that_is_a_date_is_no_number(self) -> None:
        dated = {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}
        answered = {"items": [JOB], "missing": []}
        script: list[Scripted] = [(202, QUEUED, {}), (200, NOTHING, dated), (200, answered, {})]
        with Server(*script) as server, Client(server.url) as client:
            self.assertEqual(client.submit("echo", "x").result(PATIENCE_S), "done")

    def test_there_is_always_a_pause(self) -> None:
        with Server((503, FULL, {"Retry-After": "0"}), (200, JOB, {})) as server, Client(server.url) as client:
            self.assertEqual(client.run("echo", "x"), "done")
        self.assertGreater(self.slept[0], 0.1)

    def test_deep_nonsense_is_no_answer(self) -> None:
        nonsense: Scripted = (200, b"[" * 100_000, {})
        with Server(nonsense) as server, Client(server.url) as client, self.assertRaises(ClientError) as raised:
            client.run("echo", "x")
        self.assertEqual(raised.exception.code, "no_answer")

    def test_what_a_proxy_finds_too_large_is_sent_in_parts(self) -> None:
        waited = {"items": [finished("1"), finished("2")], "missing": []}
        script: list[Scripted] = [(413, b"<html>", {}), (202, bulk("1"), {}), (202, bulk("2"), {}), (200, waited, {})]
        with Server(*script) as server, Client(server.url) as client:
            self.assertEqual(list(client.map("echo", ["a", "b"])), ["output of 1", "output of 2"])

    def test_a_job_that_somebody_cancels_has_no_output(self) -> None:
        cancelled = {"items": [{**QUEUED, "status": "cancelled"}], "missing": []}
        script: list[Scripted] = [(202, QUEUED, {}), (200, cancelled, {})]
        with Server(*script) as server, Client(server.url) as client, self.assertRaises(JobError) as raised:
            client.run("echo", "x")
        self.assertEqual((raised.exception.code, raised.exception.job_id), ("cancelled", JOB["id"]))


class ServedCase(TestCase):
    """A client of a service that is only a mock."""

    def setUp(self) -> None:
        self.service = Mock(spec=Service)
        self.service.call_once_stored.side_effect = lambda then, otherwise: then()
        self.service.wait.side_effect = lambda ids, wait_s: {"items": list(map(finished, ids)), "missing": []}
        self.client = self.enterContext(BaseClient(self.service, patience_s=60.0))


class MapTests(ServedCase):
    def setUp(self) -> None:
        super().setUp()
        self.others = set(threading.enumerate()) - {threading.current_thread()}  # that clients of other tests left
        self.clock = Mock()
        self.clock.monotonic.return_value = BEGAN_AT
        self.clock.sleep.side_effect = self.go_on
        for module in ("mapping", "service"):
            self.enterContext(patch(f"batch_inference_client.{module}.time", self.clock))

    def go_on(self, seconds: float) -> None:
        if threading.current_thread() in self.others:
            time.sleep(seconds)  # or they would ask without a pause
        else:
            self.clock.monotonic.return_value += seconds

    def test_a_slow_iterator_does_not_use_up_the_patience(self) -> None:
        def inputs() -> Iterator[str]:
            yield from "ab"
            self.go_on(1000.0)
            yield "c"

        full = ClientError("Full.", code="queue_full", passing=True)
        self.service.submit_bulk.side_effect = [bulk("1"), full, bulk("2"), bulk("3")]
        answers = list(self.client.map("m", inputs(), in_flight=4))
        self.assertEqual(answers, ["output of 1", "output of 2", "output of 3"])

    def test_patience_ends(self) -> None:
        self.service.submit_bulk.side_effect = ClientError("Full.", code="queue_full", passing=True)
        with self.assertRaises(ClientError):
            list(self.client.map("m", ["a"]))
        self.assertLess(self.clock.monotonic(), BEGAN_AT + 61.0)

    def test_without_order_slow_jobs_keep_no_others_waiting(self) -> None:
        slow = {str(number) for number in range(MOST_IDS)}

        def wait(ids: Sequence[str], wait_s: float) -> dict[str, Any]:
            return {"items": [finished(job_id) for job_id in ids if job_id not in slow], "missing": []}

        self.service.submit_bulk.return_value = bulk(*map(str, range(MOST_IDS + 1)))
        self.service.wait.side_effect = wait
        answers = self.client.map("m", map(str, range(MOST_IDS + 1)), ordered=False)
        self.assertEqual(next(answers), (MOST_IDS, f"output of {MOST_IDS}"))

    def test_answers_of_another_run_are_not_mixed_with_this_one_s(self) -> None:
        for given, made in ((["a", "b"], bulk("1", "2")), (["a"], bulk("1", succeeded=1))):
            self.service.submit_bulk.side_effect = [made]
            with self.subTest(given), self.assertRaises(ClientError) as raised:
                list(self.client.map_encoded(map(str.encode, given), {"model": "m"}, name="n", skip=2))
            self.assertEqual(raised.exception.code, "other_inputs")
        self.service.submit_bulk.side_effect = [bulk("1", "2", "3", succeeded=2, queued=1)]
        answers = self.client.map_encoded([b"a", b"b", b"c"], {"model": "m"}, name="n", skip=2)
        self.assertEqual(list(answers), [[(2, "output of 3")]])


class CallbackTests(ServedCase):
    def test_one_that_ends_its_thread_leaves_nobody_waiting(self) -> None:
        self.service.submit.side_effect = [{**QUEUED, "id": str(number)} for number in range(12)]
        release = threading.Event()
        self.service.wait.side_effect = lambda ids, wait_s: (
            release.wait(PATIENCE_S) and {"items": list(map(finished, ids)), "missing": []}
        )
        futures = [self.client.submit("m", "x") for _ in range(12)]
        for future in futures:
            future.add_done_callback(lambda _: sys.exit(1))
        with self.assertLogs("batch_inference_client"):
            release.set()
            self.assertEqual(wait(futures, timeout=PATIENCE_S).not_done, set())


class AsyncTests(ServedCase):
    def test_who_is_cancelled_leaves_no_thread_that_keeps_the_program_from_ending(self) -> None:
        self.service.submit.return_value = QUEUED
        self.service.submit_bulk.return_value = bulk("1")
        never = threading.Event()
        self.addCleanup(never.set)
        self.service.wait.side_effect = lambda ids, wait_s: never.wait() and NOTHING
        self.service.stream.side_effect = lambda job_id, after: iter(never.wait, None)

        async def first(items: AsyncIterator[Any]) -> None:
            async with asyncio.timeout(0.1):
                await anext(items)

        before = set(threading.enumerate())
        for items in (self.client.amap("m", ["x"]), self.client.astream("m", "x")):
            with self.subTest(items), self.assertRaises(TimeoutError):
                asyncio.run(first(items))
        self.client.close()  # its threads may go on with what they have begun
        left = {thread.name for thread in set(threading.enumerate()) - before if not thread.daemon}
        self.assertEqual({name for name in left if "iterator" in name}, set())

    def test_a_job_that_somebody_cancels_or_that_takes_long_raises_what_it_does_without_asyncio(self) -> None:
        self.service.submit.return_value = QUEUED
        ended = {"items": [{**QUEUED, "status": "cancelled"}], "missing": []}
        self.service.wait.side_effect = lambda ids, wait_s: ended
        with self.assertRaises(JobError) as cancelled:
            asyncio.run(self.client.arun("m", "x"))
        self.assertEqual((cancelled.exception.code, cancelled.exception.job_id), ("cancelled", JOB["id"]))
        self.service.wait.side_effect = lambda ids, wait_s: {"items": [], "missing": [], "pause_s": 0.05}

        async def submitted(model: str, inputs: Any) -> Any:
            return self.client.submit(model, inputs)  # without a thread, for which the time could be too short

        with patch.object(self.client, "asubmit", submitted), self.assertRaises(TimeoutError) as late:
            asyncio.run(self.client.arun("m", "x", timeout=0.05))
        self.assertIn(JOB["id"], str(late.exception))


class ForkTests(ServedCase):
    def test_a_forked_process_has_threads_and_connections_of_its_own(self) -> None:
        self.service.submit.return_value = QUEUED
        output = self.client.submit("m", "x").result(PATIENCE_S)
        if not (child := os.fork()):
            try:
                own = self.client.submit("m", "x").result(PATIENCE_S)
                os._exit(0 if own == output and self.service.reconnect.called else 1)
            finally:
                os._exit(2)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        self.service.reconnect.assert_not_called()


class CommandTests(TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_a_line_that_is_no_json_has_an_error_in_its_place(self) -> None:
        bad = [b'"a", "inputs": "b"', b"\xff", b'{"inputs": NaN}', b'{"inputs": "\\ud800"}', b'{"a": ' + b"[" * 100_000]
        lines = list(encode_lines([*bad, b"\n", b'"good"\n', b'{"inputs": "own", "parameters": {"k": 2}}'], {"k": 1}))
        codes = [line.code for line in lines if isinstance(line, JobError)]
        self.assertEqual(codes, ["invalid_json"] * len(bad))
        good = [json.loads(line) for line in lines if isinstance(line, bytes)]
        self.assertEqual([each["parameters"] for each in good], [{"k": 1}, {"k": 2}])

    def test_two_programs_do_not_write_to_one_file(self) -> None:
        options = make_parser().parse_args(["map", "m", "--output", str(self.folder / "answers")])
        with open_answers_file(options), self.assertRaises(ClientError) as raised, open_answers_file(options):
            pass
        self.assertIn("Another program writes", str(raised.exception))
        with open_answers_file(options):
            pass

    def test_a_file_that_cannot_be_written_is_an_error(self) -> None:
        with redirect_stderr(StringIO()) as stderr:
            self.assertEqual(main(["map", "m", "--output", str(self.folder / "none" / "answers")]), 1)
        self.assertIn("No such file", stderr.getvalue())

    def test_a_reader_that_has_gone_is_no_error_of_the_program(self) -> None:
        read, written = os.pipe()
        os.close(read)
        with Server((200, JOB, {})) as server, os.fdopen(written) as closed:
            done = subprocess.run(
                [sys.executable, "-m", "batch_inference_client", "--url", server.url, "run", "echo", "x"],
                cwd=ROOT,
                env={**os.environ, "PYTHONUNBUFFERED": ""},
                stdout=closed,
                stderr=subprocess.PIPE,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
        self.assertEqual((done.returncode, done.stderr), (1, ""))
