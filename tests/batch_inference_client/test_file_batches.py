"""Uploads and batches against a server that says what it is told to; test_command.py has the real service."""

from __future__ import annotations

import tempfile
import tracemalloc
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import TestCase

from batch_inference_client import Client, ClientError
from batch_inference_client.progress import Bar
from tests.batch_inference_client import pauses
from tests.batch_inference_client.test_trouble import CLOSE, Scripted, Server

FILE = {"id": f"file-{'0' * 32}", "bytes": 1}
COUNTS = {"total": 2, "completed": 2, "failed": 0}
BATCH: dict[str, Any] = {
    "id": f"batch_{'0' * 32}", "status": "in_progress", "request_counts": COUNTS, "output_file_id": None,
    "error_file_id": None, "errors": None,
}  # fmt: skip
ENDED = {**BATCH, "status": "completed", "output_file_id": FILE["id"]}
LARGE = 64 * 1024 * 1024


class FileBatchTests(TestCase):
    def setUp(self) -> None:
        self.slept = pauses.recorded(self)
        self.path = Path(self.enterContext(tempfile.TemporaryDirectory()), 'a "name".jsonl')
        self.path.write_bytes(b"{}")

    def serve(self, *script: Scripted | None) -> tuple[Server, Client]:
        server = self.enterContext(Server(*script))
        return server, self.enterContext(closing(Client(server.url, "secret")))

    def test_a_lost_answer_makes_no_second_batch(self) -> None:
        script: list[Any] = [CLOSE, (200, FILE, {}), CLOSE, (200, BATCH, {})]
        server, client = self.serve(*script)
        self.assertEqual(client.create_batch(self.path, "/v1/embeddings"), BATCH)
        self.assertEqual([each["path"] for each in server.requests], 2 * ["/v1/files"] + 2 * ["/v1/batches"])
        self.assertEqual(len({each["idempotency-key"] for each in server.requests[2:]}), 1)

    def test_a_large_file_is_sent_in_pieces(self) -> None:
        with self.path.open("wb") as file:
            file.truncate(LARGE)
        server, client = self.serve((200, FILE, {}))
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        self.assertEqual(client.upload_file(self.path), FILE)
        self.assertLess(tracemalloc.get_traced_memory()[1], LARGE / 8)
        self.assertGreater(int(server.requests[0]["content-length"]), LARGE)

    def test_errors_in_openai_s_form_have_the_service_s_codes(self) -> None:
        for code, shown in (("invalid_api_key", "unauthorized"), ("too_many_files", "too_many_files")):
            problem = {"error": {"message": "No.", "type": "t", "param": None, "code": code}}
            _, client = self.serve((400, problem, {"X-Request-Id": "r1"}))
            with self.subTest(code), self.assertRaises(ClientError) as refused:
                client.upload_file(self.path)
            error = refused.exception
            self.assertEqual((error.detail, error.code, error.request_id, error.passing), ("No.", shown, "r1", False))

    def test_answers_are_read_whole_after_the_connection_broke_off(self) -> None:
        cut: Scripted = (200, b'{"custom_id": "a"}\n{"cus', {"Content-Length": "38", "Connection": "close"})
        whole: Scripted = (200, b'{"custom_id": "a"}\n{"custom_id": "b"}\n', {})
        _, client = self.serve((200, BATCH, {}), (200, ENDED, {}), cut, whole)
        self.assertEqual(list(client.read_answers(BATCH["id"])), [{"custom_id": "a"}, {"custom_id": "b"}])

    def test_the_progress_has_how_many_of_all_are_answered_and_failed_and_the_time_left(self) -> None:
        bar = Bar(None, shown=False, done=10)
        bar.show(100, done=60, errors=2)
        self.assertEqual(bar.text(5.0), "[############........] 60/100  10/s  0:04 left  2 errors")

    def test_what_is_no_id_is_not_sent(self) -> None:
        server, client = self.serve()
        for call in (client.batch, client.cancel_batch, client.open_file, client.open_output):
            with self.subTest(call), self.assertRaises(ClientError) as refused:
                call("../jobs")
            self.assertIn("no id", refused.exception.detail)
        self.assertEqual(server.requests, [])
