"""Files and batches at OpenAI's addresses: what is taken, what is refused, and what becomes of each line."""

from __future__ import annotations

import datetime
import json
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch
from uuid import UUID

from django.core.files.storage import FileSystemStorage
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import override_settings
from django.test.client import BOUNDARY, encode_multipart

from api.file_batches import files, line_submitter, lines, runner, validation
from api.file_batches.batches import MOST_UNFINISHED, remove_old_batches
from api.file_batches.endpoints import ENDPOINTS
from api.file_batches.runner import BatchRunner
from api.models import BatchStatus, FileBatch, FileState, StoredFile
from api.requests import file_form
from inference.catalog import lookup
from inference.errors import EngineError
from inference.models import Bulk, Job, Status
from inference.store import outcome_records
from inference.upkeep import retention
from inference.values.priority import Priority
from tests.api.base import Answer, ApiTestCase, Laborer, Response
from tests.api.test_completions import HELLO, generated
from tests.api.test_embeddings import embed
from tests.api.test_moderations import judge
from tests.api.test_rerank import score
from tests.conditions import ago, eventually

MODELS_FILE = Path(__file__).with_name("embedding.toml")
ENDPOINT = "/v1/embeddings"
FORM = f"multipart/form-data; boundary={BOUNDARY}"


def line(custom_id: str, text: Any = "a text", **body: Any) -> dict[str, Any]:
    return {
        "custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": {"model": "vectors", "input": text, **body},
    }  # fmt: skip


def moderation(body: dict[str, Any]) -> dict[str, Any]:
    return {"custom_id": "one", "method": "POST", "url": "/v1/moderations", "body": body}


def write(*entries: Any) -> bytes:
    return b"\n".join(each if isinstance(each, bytes) else json.dumps(each).encode() for each in entries)


def strip_ids(items: list[Any]) -> list[Any]:
    return [{name: value for name, value in item.items() if name != "id"} for item in items]


def read_lines(content: bytes) -> dict[str, Any]:
    """Return the lines of a file of answers by their custom_id, each of which stands there once."""
    found = [json.loads(each) for each in content.splitlines()]
    by_id = {each["custom_id"]: each for each in found}
    assert len(by_id) == len(found)
    return by_id


@override_settings(MODELS_FILE=MODELS_FILE)
class FileBatchCase(ApiTestCase):
    def setUp(self) -> None:
        super().setUp()
        folder = self.enterContext(tempfile.TemporaryDirectory())
        files_storage = {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": {"location": folder}}
        self.enterContext(override_settings(FILES_DIR=folder, STORAGES={"files": files_storage}))
        self.folder = Path(folder)
        self.enterContext(patch.multiple(runner, FIRST_REST_S=0.0, LONGEST_REST_S=0.0))
        self.runner = BatchRunner(threading.Event())
        self.addCleanup(self.runner.close)

    def upload(self, content: bytes, **fields: Any) -> Response:
        form = {"purpose": "batch", "file": SimpleUploadedFile("in.jsonl", content), **fields}
        body = encode_multipart(BOUNDARY, {name: value for name, value in form.items() if value is not None})
        return self.client.post("/v1/files", body, content_type=FORM)

    def stored(self, *entries: Any) -> str:
        answer = self.upload(write(*entries))
        self.assertEqual(answer.status_code, 200, answer.content)
        return str(answer.json()["id"])

    def create(self, file_id: str, **fields: Any) -> Response:
        body = {"input_file_id": file_id, "endpoint": ENDPOINT, "completion_window": "24h", **fields}
        return self.post("/v1/batches", body)

    def begin(self, *entries: Any, **fields: Any) -> str:
        """Create a batch of a new file, and return its id."""
        answer = self.create(self.stored(*entries), **fields)
        self.assertEqual(answer.status_code, 200, answer.content)
        return str(answer.json()["id"])

    def shown(self, batch_id: str) -> dict[str, Any]:
        document: dict[str, Any] = self.client.get(f"/v1/batches/{batch_id}").json()
        return document

    def turn(self, batch_id: str) -> dict[str, Any]:
        self.runner.run_round()
        return self.shown(batch_id)

    def run_to_end(self, batch_id: str, answer: Answer = embed) -> dict[str, Any]:
        with self.worker(answer):
            return self.run_rounds(batch_id)

    def run_rounds(self, batch_id: str) -> dict[str, Any]:
        def ended() -> dict[str, Any] | None:
            shown = self.turn(batch_id)
            is_over = shown["status"] in ("completed", "failed", "expired", "cancelled")
            return shown if is_over else None

        return eventually(ended)

    def content(self, file_id: str) -> bytes:
        return self.download(f"/v1/files/{file_id}/content")

    def output(self, batch_id: str) -> bytes:
        return self.download(f"/v1/batches/{batch_id}/output")

    def download(self, address: str) -> bytes:
        answer = self.client.get(address)
        self.assertEqual(answer.status_code, 200)
        return b"".join(answer.streaming_content)  # type: ignore[attr-defined]  # it is a file


class FileTests(FileBatchCase):
    def test_a_file_is_stored_and_shown_and_read_and_deleted(self) -> None:
        answer = self.upload(b"some bytes")
        shown = answer.json()
        self.assertRegex(shown["id"], r"^file-[0-9a-f]{32}$")
        expected = {
            "object": "file", "bytes": 10, "filename": "in.jsonl", "purpose": "batch", "status": "processed",
            "status_details": None,
        }  # fmt: skip
        self.assertLessEqual(expected.items(), shown.items())
        self.assertEqual(shown["expires_at"] - shown["created_at"], 30 * 86_400)
        self.assertEqual(self.client.get(f"/openai/v1/files/{shown['id']}").json(), shown)
        self.assertEqual(self.content(shown["id"]), b"some bytes")
        deleted = self.client.delete(f"/v1/files/{shown['id']}").json()
        self.assertEqual(deleted, {"id": shown["id"], "object": "file", "deleted": True})
        self.assertEqual(list(self.folder.iterdir()), [])
        error = self.client.get(f"/v1/files/{shown['id']}").json()["error"]
        self.assertEqual(error["message"], f"No such File object: {shown['id']}")

    def test_the_client_says_how_long_it_is_kept(self) -> None:
        kept = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
        shown = self.upload(b"x", **kept).json()
        self.assertEqual(shown["expires_at"] - shown["created_at"], 3600)
        for wrong in ("3599", "2592001", "x", "-1", "1e5"):
            with self.subTest(wrong):
                answer = self.upload(b"x", **{**kept, "expires_after[seconds]": wrong})
                self.assertEqual(answer.status_code, 400)
                self.assertEqual(answer.json()["error"]["param"], "expires_after")

    def test_what_is_no_file_is_refused_and_leaves_nothing(self) -> None:
        good = encode_multipart(BOUNDARY, {"purpose": "batch", "file": SimpleUploadedFile("a", b"x" * 100_000)})
        for body, media_type, words in (
            (good[:-20], FORM, "before its closing boundary"),
            (good[:50_000], FORM, "before its closing boundary"),
            (b"{}", "application/json", "multipart/form-data"),
            (good, "multipart/form-data", "cannot be read"),
            (encode_multipart(BOUNDARY, {"purpose": "batch"}), FORM, "file: send one file"),
            (encode_multipart(BOUNDARY, {"purpose": "batch", "file": "text"}), FORM, "send one file"),
        ):
            with self.subTest(words, body=body[:20]):
                answer = self.client.post("/v1/files", body, content_type=media_type)
                self.assertGreaterEqual(answer.status_code, 400)
                self.assertIn(words, answer.json()["error"]["message"])
        for content, fields, words, param in (
            (b"x", {"purpose": "fine-tune"}, "must be batch", "purpose"),
            (b"x", {"purpose": None}, "must be batch", "purpose"),
            (b"x", {"colour": "red"}, "unknown field", "colour"),
            (b"x", {"other": SimpleUploadedFile("b", b"y")}, "send one file", "file"),
            (b"", {}, "is empty", "file"),
        ):
            with self.subTest(words):
                answer = self.upload(content, **fields)
                self.assertEqual((answer.status_code, answer.json()["error"]["param"]), (400, param))
                self.assertIn(words, answer.json()["error"]["message"])
        self.assertFalse(StoredFile.objects.exists())
        self.assertEqual(list(self.folder.iterdir()), [])

    @override_settings(MAX_FILE_BYTES=1000)
    def test_a_file_may_have_so_many_bytes(self) -> None:
        self.assertEqual(self.upload(b"x" * 1000).status_code, 200)
        answer = self.upload(b"x" * 70_000)
        self.assertEqual((answer.status_code, answer.json()["error"]["code"]), (413, "body_too_large"))

    def test_pages_end_and_go_on_after_an_id(self) -> None:
        ids = [self.stored(line("a")) for _ in range(5)]
        first = self.client.get("/v1/files?limit=2").json()
        self.assertEqual([each["id"] for each in first["data"]], ids[:2:-1])
        self.assertEqual((first["first_id"], first["last_id"], first["has_more"]), (ids[4], ids[3], True))
        second = self.client.get(f"/v1/files?limit=3&after={first['last_id']}").json()
        self.assertEqual(([each["id"] for each in second["data"]], second["has_more"]), (ids[2::-1], False))
        ascending = self.client.get(f"/v1/files?order=asc&after={ids[3]}&purpose=batch").json()
        self.assertEqual([each["id"] for each in ascending["data"]], ids[4:])
        self.assertEqual(self.client.get("/v1/files?purpose=batch_output").json()["data"], [])
        for query in (
            "limit=0",
            "limit=x",
            f"limit={'9' * 5000}",
            "purpose=x",
            "purpose=%00",
            "limit=10001",
            "order=up",
            "after=file-x",
            "before=1",
        ):
            with self.subTest(query):
                self.assertEqual(self.client.get(f"/v1/files?{query}").status_code, 400)

    def test_nothing_of_an_upload_that_died_or_of_a_file_that_expired_stays(self) -> None:
        kept = UUID(self.stored(line("kept")).removeprefix("file-"))
        expired = UUID(self.stored(line("old")).removeprefix("file-"))
        StoredFile.objects.filter(pk=expired).update(expires_at=ago(1))
        self.assertEqual([each["id"] for each in self.client.get("/v1/files").json()["data"]], [f"file-{kept.hex}"])
        for path in ("", "/content"):
            self.assertEqual(self.client.get(f"/v1/files/file-{expired.hex}{path}").status_code, 404)
        content = SimpleUploadedFile("a", b"half")
        dies = patch.object(StoredFile.objects, "filter", side_effect=RuntimeError)
        with dies, self.assertRaises(RuntimeError):
            files.store_file(content, owner=None, name="a", size=4, purpose="batch")  # type: ignore[arg-type]
        self.assertEqual(len(list(self.folder.iterdir())), 3)
        with patch.object(files, "UPLOAD", datetime.timedelta(seconds=-60)):
            self.assertEqual(files.purge_old_files(), 2)
        self.assertEqual([each.name for each in self.folder.iterdir()], [kept.hex])
        self.assertEqual(StoredFile.objects.get().pk, kept)


class BatchTests(FileBatchCase):
    def test_each_line_is_a_job_of_low_priority_and_its_answer_a_line(self) -> None:
        batch_id = self.begin(line("one", "a"), b"", line("two", ["b", "c d"], encoding_format="base64"))
        self.assertEqual(self.shown(batch_id)["status"], "validating")
        shown = self.turn(batch_id)
        self.assertEqual((shown["status"], shown["model"]), ("in_progress", "vectors"))
        self.turn(batch_id)
        self.assertEqual(
            list(Job.objects.order_by("pk").values_list("inputs", "priority", "route", "bulk_index")),
            [(["a"], Priority.LOW, "/v1/batches", 0), (["b", "c d"], Priority.LOW, "/v1/batches", 1)],
        )
        shown = self.run_to_end(batch_id)
        self.assertEqual(shown["status"], "completed")
        self.assertEqual(shown["request_counts"], {"total": 2, "completed": 2, "failed": 0})
        self.assertEqual(shown["usage"]["total_tokens"], 3 + 3 + 4)
        self.assertIsNone(shown["error_file_id"])
        found = read_lines(self.content(shown["output_file_id"]))
        self.assertEqual(list(found), ["one", "two"])
        for name, given in (("one", {"input": "a"}), ("two", {"input": ["b", "c d"], "encoding_format": "base64"})):
            with self.worker(embed):
                alone = self.post("/v1/embeddings", {"model": "vectors", **given}).json()
            self.assertEqual(found[name]["response"]["status_code"], 200)
            self.assertEqual(found[name]["response"]["body"], alone)
            self.assertIsNone(found[name]["error"])

    def test_a_line_that_is_refused_or_fails_stands_in_the_file_of_errors(self) -> None:
        def answer(value: Any, parameters: dict[str, Any]) -> Any:
            return EngineError("secret words") if value == "bad" else embed(value, parameters)

        batch_id = self.begin(line("good"), line("refused", colour="red"), line("long", 3), line("failed", "bad"))
        shown = self.run_to_end(batch_id, answer)
        self.assertEqual(shown["status"], "completed")
        self.assertEqual(shown["request_counts"], {"total": 4, "completed": 1, "failed": 3})
        self.assertEqual(list(read_lines(self.content(shown["output_file_id"]))), ["good"])
        errors = read_lines(self.content(shown["error_file_id"]))
        statuses = {name: each["response"]["status_code"] for name, each in errors.items()}
        self.assertEqual(statuses, {"refused": 400, "long": 400, "failed": 502})
        message = errors["refused"]["response"]["body"]["error"]["message"]
        self.assertEqual(message, self.post(ENDPOINT, line("", colour="red")["body"]).json()["error"]["message"])
        self.assertNotIn(b"secret", json.dumps(errors).encode())

    def test_a_batch_all_of_whose_lines_fail_is_completed_without_a_file_of_answers(self) -> None:
        shown = self.run_to_end(self.begin(line("a", colour="red")))
        self.assertEqual((shown["status"], shown["output_file_id"]), ("completed", None))
        self.assertIsNotNone(shown["error_file_id"])

    def test_a_file_with_a_line_that_is_no_request_fails_as_a_whole(self) -> None:
        good = line("a")
        for wrong, code, param in (
            (b"{", "invalid_json_line", None),
            (b"[]", "invalid_json_line", None),
            (b'{"custom_id": "\\ud800"}', "invalid_json_line", None),
            ({**good, "custom_id": None}, "missing_required_parameter", "custom_id"),
            ({**good, "custom_id": 3}, "invalid_request", "custom_id"),
            ({**good, "custom_id": "x" * 513}, "invalid_request", "custom_id"),
            ({**good, "method": "GET"}, "invalid_method", "method"),
            ({**good, "url": "/v1/completions"}, "url_mismatch", "url"),
            ({**good, "body": "x"}, "invalid_request", "body"),
            (line("b", model="nope"), "model_not_found", "body.model"),
            (line("b", stream=True), "stream_not_supported", "body.stream"),
            (line("first"), "duplicate_custom_id", "custom_id"),
        ):
            with self.subTest(code, param=param):
                shown = self.turn(self.begin(line("first"), wrong, line("last")))
                self.assertEqual((shown["status"], shown["output_file_id"]), ("failed", None))
                (error,) = shown["errors"]["data"]
                self.assertEqual((error["code"], error["param"], error["line"]), (code, param, 2), error)
        unnamed = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": HELLO}}
        (error,) = self.turn(self.begin(unnamed, endpoint=unnamed["url"]))["errors"]["data"]
        self.assertEqual((error["code"], error["param"]), ("missing_required_parameter", "body.model"))
        self.assertFalse(Job.objects.exists())
        self.assertFalse(Bulk.objects.filter(is_open=True).exists())

    def test_lines_behind_a_long_run_of_blanks_are_not_dropped(self) -> None:
        with override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=500):
            for blanks in (b" " * 501, json.dumps(line("b")).encode() + b" " * 501):
                shown = self.turn(self.begin(line("a"), blanks, line("c")))
                self.assertEqual((shown["status"], shown["errors"]["data"][0]["line"]), ("failed", 2))

    def test_a_file_has_so_many_inputs(self) -> None:
        with patch("api.file_batches.validation.MOST_INPUTS", 3):
            (error,) = self.turn(self.begin(line("a", ["x", "y"]), line("b", ["x", "y"])))["errors"]["data"]
        self.assertEqual((error["code"], error["line"]), ("too_many_tasks", None))

    def test_the_inputs_of_a_line_are_its_texts(self) -> None:
        part = {"type": "text", "text": "a"}
        for address, body, count in (
            ("/v1/embeddings", {"input": ["a", "b"]}, 2),
            ("/v1/embeddings", {"input": "a"}, 1),
            ("/v1/embeddings", {"input": [1, 2, 3]}, 1),
            ("/v1/completions", {"prompt": ["a", [1, 2]]}, 2),
            ("/v1/completions", {"prompt": [1, 2]}, 1),
            ("/v1/chat/completions", {"messages": [part, part]}, 1),
            ("/v1/responses", {"input": [part, part]}, 1),
            ("/v1/rerank", {"documents": ["a", {"text": "b"}]}, 2),
            ("/v1/rerank", {"texts": ["a", "b"]}, 2),
            ("/v1/moderations", {"input": ["a", "b", "c"]}, 3),
            ("/v1/moderations", {"input": [part, part]}, 1),
        ):
            with self.subTest(f"{address} {body}"):
                self.assertEqual(ENDPOINTS[address].count_inputs(body), count)

    def test_an_empty_file_and_one_with_too_many_lines_fail(self) -> None:
        (error,) = self.turn(self.begin(b" \n\n"))["errors"]["data"]
        self.assertEqual((error["code"], error["line"]), ("empty_file", None))
        with patch("api.file_batches.validation.MOST_LINES", 2):
            (error,) = self.turn(self.begin(*(line(str(number)) for number in range(3))))["errors"]["data"]
        self.assertEqual(error["code"], "too_many_tasks")

    @override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=500)
    def test_a_line_is_no_longer_than_a_request(self) -> None:
        shown = self.turn(self.begin(line("a"), line("b", "x" * 500), line("c")))
        (error,) = shown["errors"]["data"]
        self.assertIn("longer than the 500 bytes", error["message"])

    def test_a_byte_order_mark_and_windows_line_ends_are_read_over(self) -> None:
        batch_id = self.begin(b"\xef\xbb\xbf" + json.dumps(line("a")).encode() + b"\r", json.dumps(line("b")).encode())
        self.assertEqual(self.run_to_end(batch_id)["request_counts"]["completed"], 2)

    def test_a_request_for_a_batch_says_what_is_wrong_with_it(self) -> None:
        file_id = self.stored(line("a"))
        for fields, param in (
            ({"endpoint": "/v1/images"}, "endpoint"),
            ({"endpoint": ["/v1/embeddings"]}, "endpoint"),
            ({"completion_window": "25"}, "completion_window"),
            ({"completion_window": "169h"}, "completion_window"),
            ({"completion_window": None}, "completion_window"),
            ({"metadata": {"a": 1}}, "metadata"),
            ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
            ({"output_expires_after": {"anchor": "created_at", "seconds": 5}}, "output_expires_after"),
            ({"output_expires_after": 5}, "output_expires_after"),
            ({"input_file_id": 3}, "input_file_id"),
            ({"colour": "red"}, "colour"),
        ):
            with self.subTest(fields):
                answer = self.create(file_id, **fields)
                self.assertEqual((answer.status_code, answer.json()["error"]["param"]), (400, param))
        for missing in ("file-" + 32 * "0", "x", "", "file-../../etc/passwd"):
            with self.subTest(missing):
                self.assertEqual(self.create(missing).status_code, 404)
        self.assertEqual(self.create(file_id, metadata=None, completion_window="30m").status_code, 200)
        self.assertFalse(Bulk.objects.exclude(pk__in=FileBatch.objects.values("pk")).exists())

    def test_a_key_makes_one_batch_however_often(self) -> None:
        file_id = self.stored(line("a"))
        body = {"input_file_id": file_id, "endpoint": ENDPOINT, "completion_window": "24h"}
        ids = {self.post("/v1/batches", body, headers={"Idempotency-Key": "k"}).json()["id"] for _ in range(3)}
        self.assertEqual(len(ids), 1)
        answer = self.post("/v1/batches", {**body, "completion_window": "1h"}, headers={"Idempotency-Key": "k"})
        self.assertEqual(answer.status_code, 400)

    def test_a_batch_that_is_cancelled_keeps_its_answers(self) -> None:
        batch_id = self.begin(line("a"), line("b"), line("c"))
        self.turn(batch_id), self.turn(batch_id)
        worker = Laborer(embed)  # which takes no job by itself
        first = Job.objects.order_by("pk")[0]
        self.assertEqual(self.output(batch_id), b"")
        (mine,) = worker.claimed(first, first.id)
        outcome_records.record_outcomes(first.id, [worker.outcome(mine)], batch_size=1)
        so_far = self.output(batch_id)
        self.assertEqual(list(read_lines(so_far)), ["a"])
        answer = self.post(f"/v1/batches/{batch_id}/cancel")
        self.assertEqual((answer.status_code, answer.json()["status"]), (200, "cancelling"))
        shown = self.run_rounds(batch_id)
        self.assertEqual(shown["status"], "cancelled")
        self.assertEqual(shown["request_counts"], {"total": 3, "completed": 1, "failed": 0})
        self.assertEqual((self.content(shown["output_file_id"]), self.output(batch_id)), (so_far, so_far))
        errors = read_lines(self.content(shown["error_file_id"]))
        self.assertEqual({each["error"]["code"] for each in errors.values()}, {"batch_cancelled"})
        self.assertEqual({each["response"] for each in errors.values()}, {None})
        again = self.post(f"/v1/batches/{batch_id}/cancel")
        self.assertEqual((again.status_code, again.json()["status"]), (200, "cancelled"))

    def test_it_is_no_bulk(self) -> None:
        batch_id = self.begin(line("a"))
        address = f"/v1/jobs/bulk/{UUID(batch_id.removeprefix('batch_'))}"
        for answer in (self.client.get(address), self.client.post(f"{address}/cancel")):
            self.assertEqual((answer.status_code, answer.json()["code"]), (404, "bulk_not_found"))
            self.assertIn(f"/v1/batches/{batch_id}", answer.json()["detail"])
        self.assertEqual(self.shown(batch_id)["status"], "validating")
        while not Job.objects.exists():
            self.turn(batch_id)
        for answer in (self.client.get(address), self.client.post(f"{address}/cancel")):
            self.assertEqual((answer.status_code, answer.json()["code"]), (404, "bulk_not_found"))
        self.assertEqual(Job.objects.get().status, Status.QUEUED)

    def test_one_that_was_not_checked_yet_is_cancelled_at_once(self) -> None:
        batch_id = self.begin(b"{")
        self.post(f"/v1/batches/{batch_id}/cancel")
        shown = self.turn(batch_id)
        self.assertEqual((shown["status"], shown["output_file_id"], shown["error_file_id"]), ("cancelled", None, None))

    def test_what_is_not_answered_within_the_window_expires(self) -> None:
        with patch.object(line_submitter, "PORTION", 2), patch.object(line_submitter, "MOST_WAITING", 2):
            batch_id = self.begin(line("a"), line("b"), line("c"))
            self.turn(batch_id), self.turn(batch_id)
        self.assertEqual(Job.objects.count(), 2)
        FileBatch.objects.update(expires_at=ago(1))
        Job.objects.update(expires_at=ago(1))
        shown = self.run_rounds(batch_id)
        self.assertEqual((shown["status"], shown["request_counts"]["completed"]), ("expired", 0))
        errors = read_lines(self.content(shown["error_file_id"]))
        self.assertEqual(
            {name: each["error"]["code"] for name, each in errors.items()}, dict.fromkeys("abc", "batch_expired")
        )

    def test_lines_become_jobs_in_portions_each_once_whatever_ends_the_process(self) -> None:
        with patch.object(line_submitter, "PORTION", 2):
            batch_id = self.begin(*(line(str(number)) for number in range(7)))
            self.turn(batch_id)
            for fault in ("before_insert", "after_insert", "before_publish"):
                dies = patch("inference.failpoints.reach", side_effect=lambda name, at=fault: _die_at(name, at))
                with self.subTest(fault), dies, self.assertLogs("api.file_batches.runner", "ERROR"):
                    self.runner.run_round()
                FileBatch.objects.update(lease_until=None)
                self.assertEqual(Job.objects.count(), FileBatch.objects.get().lines_read)
            Job.objects.filter(status=Status.QUEUED).update(published_at=None)
            shown = self.run_to_end(batch_id)
        self.assertEqual(shown["request_counts"], {"total": 7, "completed": 7, "failed": 0})
        self.assertEqual(len(read_lines(self.content(shown["output_file_id"]))), 7)
        self.assertEqual(Job.objects.count(), 7)

    def test_two_processes_at_one_batch_store_each_line_once(self) -> None:
        batch_id = self.begin(line("a"), line("b"))
        self.turn(batch_id)
        batch = FileBatch.objects.get()
        self.runner.run_round()
        with (
            StoredFile.get_storage().open(batch.input_file.stored_as) as file,  # type: ignore[union-attr]
            self.assertRaises(line_submitter.Overtaken),
        ):
            line_submitter.LineSubmitter(batch, file).store_portion(batch)
        self.assertEqual(Job.objects.count(), 2)

    def test_lines_wait_while_the_queue_is_full_and_while_their_model_is_gone(self) -> None:
        batch_id = self.begin(line("a"), line("b"))
        self.turn(batch_id)
        with override_settings(MAX_LOW_QUEUED=1), patch.object(lookup.get_spec("vectors").__class__, "max_queued", 1):
            self.assertEqual(self.turn(batch_id)["status"], "in_progress")
        with override_settings(MODELS_FILE=MODELS_FILE.with_name("ranking.toml")):
            self.assertEqual(self.turn(batch_id)["status"], "in_progress")
        self.assertEqual(self.run_to_end(batch_id)["request_counts"]["completed"], 2)

    @override_settings(MODELS_FILE=MODELS_FILE.with_name("moderating.toml"))
    def test_lines_for_the_default_model_wait_while_it_is_gone(self) -> None:
        batch_id = self.begin(moderation({"input": "a"}), endpoint="/v1/moderations")
        self.turn(batch_id)
        with override_settings(MODELS_FILE=MODELS_FILE):
            shown = self.turn(batch_id)
            self.assertEqual((shown["status"], Job.objects.count()), ("in_progress", 0))
        self.assertEqual(self.run_to_end(batch_id, judge)["request_counts"]["completed"], 1)

    def test_a_file_for_a_default_model_that_there_is_not_is_refused(self) -> None:
        shown = self.turn(self.begin(moderation({"input": "a"}), endpoint="/v1/moderations"))
        (error,) = shown["errors"]["data"]
        self.assertEqual((error["code"], error["line"], error["param"]), ("model_not_found", 1, "body.model"))

    def test_a_line_may_leave_out_the_model_where_its_address_has_a_default(self) -> None:
        requested = [
            {"custom_id": name, "method": "POST", "url": ENDPOINT, "body": {"input": "a", **named}}
            for name, named in (("a", {}), ("b", {"model": "default/not-specified"}))
        ]
        self.assertEqual(self.run_to_end(self.begin(*requested))["request_counts"]["completed"], 2)

    def test_answers_are_written_also_where_their_model_is_gone(self) -> None:
        ranking = {"query": "q", "documents": ["a", "b"], "model": "default/not-specified"}
        for file, url, body, answer in (
            ("moderating.toml", "/v1/moderations", {"input": "a", "model": "toxic"}, judge),
            ("ranking.toml", "/v1/rerank", ranking, score),
        ):
            with self.subTest(url), override_settings(MODELS_FILE=MODELS_FILE.with_name(file)):
                requested = {"custom_id": "one", "method": "POST", "url": url, "body": body}
                batch_id = self.begin(requested, endpoint=url)
                self.turn(batch_id)
                self.turn(batch_id)
                with self.worker(answer):
                    eventually(Job.objects.filter(status=Status.SUCCEEDED, route="/v1/batches").count)
                so_far = self.output(batch_id)
                with override_settings(MODELS_FILE=MODELS_FILE):
                    shown = self.run_rounds(batch_id)
                self.assertEqual(shown["request_counts"], {"total": 1, "completed": 1, "failed": 0})
                self.assertEqual(self.content(shown["output_file_id"]), so_far)
                Job.objects.all().delete()

    def test_a_list_longer_than_a_batch_is_one_line_of_many_parts(self) -> None:
        texts = [f"text {number}" for number in range(100)]
        shown = self.run_to_end(self.begin(line("long", texts), line("short", "a")))
        self.assertEqual(shown["request_counts"]["completed"], 2)
        found = read_lines(self.content(shown["output_file_id"]))
        self.assertEqual(len(found["long"]["response"]["body"]["data"]), 100)

    @override_settings(MODELS_FILE=MODELS_FILE.with_name("generating.toml"))
    def test_chats_and_responses_are_answered_as_by_themselves(self) -> None:
        for url, body in (
            ("/v1/chat/completions", {"messages": HELLO, "n": 2}),
            ("/v1/completions", {"prompt": ["a", "b"]}),
            ("/v1/responses", {"input": "hello", "instructions": "be kind", "metadata": {"a": "b"}}),
        ):
            with self.subTest(url):
                requested = {"custom_id": "one", "method": "POST", "url": url, "body": {"model": "prompts", **body}}
                shown = self.run_to_end(self.begin(requested, endpoint=url), generated)
                answer = read_lines(self.content(shown["output_file_id"]))["one"]["response"]["body"]
                with self.worker(generated):
                    alone = self.post(url, requested["body"]).json()
                same = "output" if "output" in alone else "choices"
                self.assertEqual(strip_ids(answer[same]), strip_ids(alone[same]))
                self.assertEqual((answer["usage"], answer.get("metadata")), (alone["usage"], body.get("metadata")))
                self.assertEqual(shown["usage"]["total_tokens"], alone["usage"]["total_tokens"])

    @override_settings(MODELS_FILE=MODELS_FILE.with_name("moderating.toml"))
    def test_texts_are_moderated_by_the_default_model_too(self) -> None:
        for model, flagged in (({"model": "toxic"}, False), ({}, True)):
            requested = moderation({"input": "a", **model})
            shown = self.run_to_end(self.begin(requested, endpoint="/v1/moderations"), judge)
            answer = read_lines(self.content(shown["output_file_id"]))["one"]["response"]["body"]
            self.assertEqual([each["flagged"] for each in answer["results"]], [flagged])

    def test_a_line_that_meets_a_bug_keeps_no_other_from_its_answer(self) -> None:
        def fail(kind: str) -> Any:
            def call(*given: Any) -> Any:
                body = given[0 if kind == "unread" else 1]
                if body.get("input") == kind:
                    raise RuntimeError("a bug")
                return getattr(endpoint, "read" if kind == "unread" else "write")(*given)

            return call

        endpoint = ENDPOINTS[ENDPOINT]
        broken = replace(endpoint, read=fail("unread"), write=fail("unwritten"))
        with (
            patch.dict(ENDPOINTS, {ENDPOINT: broken}),
            self.assertLogs("api.file_batches.line_submitter", "ERROR"),
            self.assertLogs("api.errors.problems", "ERROR"),
        ):
            shown = self.run_to_end(self.begin(line("good"), line("one", "unread"), line("other", "unwritten")))
        self.assertEqual(shown["request_counts"], {"total": 3, "completed": 1, "failed": 2})
        errors = read_lines(self.content(shown["error_file_id"]))
        self.assertEqual(set(errors), {"one", "other"})
        self.assertNotIn("a bug", str(errors))

    def test_items_of_responses_are_no_texts_of_embeddings(self) -> None:
        with patch.object(validation, "MOST_INPUTS", 2):
            body = {"model": "prompts", "input": [{"role": "user", "content": "a"}] * 3}
            requested = {"custom_id": "one", "method": "POST", "url": "/v1/responses", "body": body}
            with override_settings(MODELS_FILE=MODELS_FILE.with_name("generating.toml")):
                shown = self.run_to_end(self.begin(requested, endpoint="/v1/responses"), generated)
        self.assertEqual(shown["request_counts"]["completed"], 1)

    def test_a_file_that_a_batch_reads_is_not_deleted_and_does_not_expire(self) -> None:
        batch_id = self.begin(line("a"))
        file_id = self.shown(batch_id)["input_file_id"]
        answer = self.client.delete(f"/v1/files/{file_id}")
        self.assertEqual((answer.status_code, answer.json()["error"]["code"]), (409, "file_in_use"))
        StoredFile.objects.update(expires_at=ago(1))
        self.assertEqual(files.purge_old_files(), 0)
        self.assertEqual(self.client.get(f"/v1/files/{file_id}").status_code, 200)
        self.assertEqual(self.output(batch_id), b"")
        StoredFile.objects.update(expires_at=None)
        self.run_to_end(batch_id)
        self.assertEqual(self.client.delete(f"/v1/files/{file_id}").status_code, 200)
        self.assertIsNone(self.shown(batch_id)["input_file_id"])

    def test_answers_that_have_expired_are_not_served(self) -> None:
        batch_id = self.begin(line("a"))
        self.run_to_end(batch_id)
        StoredFile.objects.update(expires_at=ago(1))
        answer = self.client.get(f"/v1/batches/{batch_id}/output")
        self.assertEqual((answer.status_code, answer.json()["error"]["code"]), (404, "file_not_found"))

    def test_a_batch_whose_file_lost_its_end_fails_and_says_so(self) -> None:
        with patch.object(line_submitter, "PORTION", 1):
            batch_id = self.begin(line("a"), line("b"))
            self.turn(batch_id)
        (file,) = self.folder.iterdir()
        file.write_bytes(json.dumps(line("a")).encode())
        shown = self.run_to_end(batch_id)
        self.assertEqual((shown["status"], shown["errors"]["data"][0]["code"]), ("failed", "input_file_missing"))

    def test_an_error_while_the_answers_are_written_is_tried_again_after_the_window_too(self) -> None:
        batch_id = self.begin(line("a"))
        full = patch.object(runner, "write_results", side_effect=OSError("disk full"))
        with self.worker(embed), full, self.assertLogs("api.file_batches.runner", "ERROR"):
            eventually(lambda: self.turn(batch_id)["status"] == "finalizing" and self.turn(batch_id))
        FileBatch.objects.update(expires_at=ago(60), lease_until=None)
        shown = self.run_rounds(batch_id)
        self.assertEqual((shown["status"], shown["request_counts"]["completed"]), ("completed", 1))

    def test_a_storage_that_cannot_remove_a_file_stops_nothing(self) -> None:
        batch_id = self.begin(line("a"))
        other = self.stored(line("b"))
        StoredFile.objects.filter(pk=UUID(other.removeprefix("file-"))).update(expires_at=ago(1))
        with patch.object(FileSystemStorage, "delete", side_effect=PermissionError):
            with self.assertLogs("api.file_batches.files", "ERROR"):
                self.assertEqual(self.run_to_end(batch_id)["status"], "completed")
            with self.assertLogs("api.file_batches.files", "ERROR"):
                self.assertEqual(self.client.delete(f"/v1/files/{self.stored(line('c'))}").status_code, 200)
        self.assertEqual(StoredFile.objects.filter(state=FileState.DELETED).count(), 2)
        self.assertEqual(files.purge_old_files(), 2)

    def test_a_storage_that_takes_no_file_is_503_and_leaves_nothing(self) -> None:
        for error in (OSError("no room"), RuntimeError("of another package")):
            with patch.object(FileSystemStorage, "save", side_effect=error), self.assertLogs("api.file_batches.files"):
                answer = self.upload(b"x")
            self.assertEqual((answer.status_code, answer.json()["error"]["code"]), (503, "store_unavailable"))
        self.assertFalse(StoredFile.objects.exists())

    def test_a_disk_without_room_for_an_upload_is_503_and_nothing_is_stored(self) -> None:
        full = OSError("no room")
        no_write, no_seek = Mock(write=Mock(side_effect=full)), Mock(seek=Mock(side_effect=full))
        for opened in (full, [no_write], [no_seek]):
            with patch.object(file_form, "open_temporary_file", side_effect=opened):
                answer = self.upload(b"x")
            self.assertEqual((answer.status_code, answer.json()["error"]["code"]), (503, "store_unavailable"))
        self.assertFalse(StoredFile.objects.exists())

    def test_a_batch_whose_file_was_lost_fails_and_says_so(self) -> None:
        batch_id = self.begin(line("a"))
        for each in self.folder.iterdir():
            each.unlink()
        (error,) = self.turn(batch_id)["errors"]["data"]
        self.assertEqual(error["code"], "input_file_missing")

    def test_the_jobs_of_a_batch_are_kept_until_its_answers_are_written(self) -> None:
        batch_id = self.begin(line("a"), line("b", colour="red"))
        self.turn(batch_id), self.turn(batch_id)
        sweep = retention.Sweep()
        sweep.limit = ago(-60)
        with patch.object(retention, "make_first_id", lambda _: UUID(int=2**128 - 1)):
            self.assertEqual(sweep.remove_chunk(), 0)
            shown = self.run_to_end(batch_id)
            sweep = retention.Sweep()
            sweep.limit = ago(-60)
            self.assertEqual(sweep.remove_chunk(), 2)
        self.assertEqual(self.shown(batch_id), shown)
        self.assertEqual(list(read_lines(self.content(shown["output_file_id"]))), ["a"])

    def test_a_batch_that_cannot_be_worked_on_holds_up_no_other(self) -> None:
        broken, good = self.begin(line("a")), self.begin(line("b"))
        self.turn(good)
        FileBatch.objects.filter(pk=UUID(broken.removeprefix("batch_"))).update(
            endpoint="/v1/none", status="in_progress", total=1
        )
        with self.assertLogs("api.file_batches.runner", "ERROR"):
            self.assertEqual(self.run_to_end(good)["status"], "completed")
        FileBatch.objects.update(expires_at=ago(1), lease_until=None)
        with self.assertLogs("api.file_batches.runner", "ERROR"):
            self.turn(broken), self.turn(broken)
        self.assertEqual(self.shown(broken)["status"], "finalizing")  # its answers are not given up at once
        FileBatch.objects.update(expires_at=ago(days=2), lease_until=None)
        with self.assertLogs("api.file_batches.runner", "ERROR"):
            shown = self.run_rounds(broken)
        self.assertEqual((shown["status"], shown["errors"]["data"][0]["code"]), ("failed", "internal"))

    def test_a_batch_is_kept_for_ninety_days_after_its_end(self) -> None:
        batch_id = self.begin(line("a"))
        self.run_to_end(batch_id)
        FileBatch.objects.update(ended_at=ago(days=89))
        remove_old_batches()
        self.assertEqual(self.shown(batch_id)["status"], "completed")
        FileBatch.objects.update(ended_at=ago(days=91))
        remove_old_batches()
        self.assertEqual(self.client.get(f"/v1/batches/{batch_id}").status_code, 404)

    @override_settings(MODELS_FILE=MODELS_FILE.with_name("moderating.toml"))
    def test_lines_that_a_version_without_the_options_stored_are_answered(self) -> None:
        batch_id = self.begin(moderation({"input": "a", "model": "toxic"}), endpoint="/v1/moderations")
        self.turn(batch_id)
        self.turn(batch_id)
        FileBatch.objects.update(model_options=None)
        shown = self.run_to_end(batch_id, judge)
        answer = read_lines(self.content(shown["output_file_id"]))["one"]["response"]["body"]
        self.assertFalse(answer["results"][0]["flagged"])

    def test_the_key_of_a_batch_whose_row_alone_is_gone_says_so(self) -> None:
        body = {"input_file_id": self.stored(line("a")), "endpoint": ENDPOINT, "completion_window": "24h"}
        self.post("/v1/batches", body, headers={"Idempotency-Key": "k"})
        FileBatch.objects.all().delete()
        again = self.post("/v1/batches", body, headers={"Idempotency-Key": "k"})
        self.assertEqual(again.status_code, 404)
        self.assertIn("send another key", again.json()["error"]["message"])

    def test_the_key_of_a_batch_that_was_removed_is_free(self) -> None:
        body = {"input_file_id": self.stored(line("a")), "endpoint": ENDPOINT, "completion_window": "24h"}
        first = self.post("/v1/batches", body, headers={"Idempotency-Key": "k"}).json()
        self.run_to_end(first["id"])
        FileBatch.objects.update(ended_at=ago(days=91))
        remove_old_batches()
        again = self.post("/v1/batches", body, headers={"Idempotency-Key": "k"})
        self.assertEqual(again.status_code, 200)
        self.assertNotEqual(again.json()["id"], first["id"])

    def test_a_request_that_is_sent_again_is_the_same_batch_though_its_file_is_gone(self) -> None:
        file_id = self.stored(line("a"))
        body = {"input_file_id": file_id, "endpoint": ENDPOINT, "completion_window": "24h"}
        first = self.post("/v1/batches", body, headers={"Idempotency-Key": "k"}).json()
        self.run_to_end(first["id"])
        self.client.delete(f"/v1/files/{file_id}")
        again = self.post("/v1/batches", body, headers={"Idempotency-Key": "k"})
        self.assertEqual((again.status_code, again.json()["id"]), (200, first["id"]))

    def test_a_download_needs_a_slot_and_gives_it_back(self) -> None:
        file_id = self.stored(line("a"))
        with override_settings(MAX_WAITING_REQUESTS=1):
            answer = self.client.get(f"/v1/files/{file_id}/content")
            refused = self.client.get(f"/v1/files/{file_id}/content")
            self.assertEqual((refused.status_code, refused.json()["error"]["code"]), (503, "overloaded"))
            b"".join(answer.streaming_content)  # type: ignore[attr-defined]  # it is a file
            answer.close()
            self.assertEqual(self.content(file_id), write(line("a")))

    def test_batches_are_listed_in_pages(self) -> None:
        ids = [self.begin(line("a")) for _ in range(3)]
        page = self.client.get("/openai/v1/batches?limit=2").json()
        self.assertEqual(([each["id"] for each in page["data"]], page["has_more"]), (ids[:0:-1], True))
        page = self.client.get(f"/openai/v1/batches?limit=2&after={page['last_id']}").json()
        for batch_id in ids:
            self.turn(batch_id)
        with self.assertNumQueries(2):  # the batches, and their lines
            self.client.get("/v1/batches")
        self.assertEqual(([each["id"] for each in page["data"]], page["has_more"]), (ids[:1], False))


def _die_at(name: str, at: str) -> None:
    if name == at:
        raise RuntimeError("the process dies here")


@override_settings(API_KEY_REQUIRED=True)
class OwnerTests(FileBatchCase):
    """Owners see their own files and batches only."""

    def setUp(self) -> None:
        super().setUp()
        from django.contrib.auth import get_user_model

        from api.models import ApiKey

        self.keys = {}
        for name in ("alice", "bob"):
            user = get_user_model().objects.create_user(name)
            _, self.keys[name] = ApiKey.objects.issue_key(owner=user)

    def as_user(self, name: str) -> None:
        self.client.defaults["HTTP_AUTHORIZATION"] = f"Bearer {self.keys[name]}"

    def test_nobody_sees_reads_deletes_uses_or_cancels_what_is_another_s(self) -> None:
        self.as_user("alice")
        batch_id = self.begin(line("a"))
        file_id = self.shown(batch_id)["input_file_id"]
        self.as_user("bob")
        for method, path in (
            ("get", f"/v1/files/{file_id}"),
            ("get", f"/v1/files/{file_id}/content"),
            ("delete", f"/v1/files/{file_id}"),
            ("get", f"/v1/batches/{batch_id}"),
            ("get", f"/v1/batches/{batch_id}/output"),
            ("post", f"/v1/batches/{batch_id}/cancel"),
        ):
            with self.subTest(method, path=path):
                self.assertEqual(getattr(self.client, method)(path).status_code, 404)
        self.assertEqual(self.create(file_id).status_code, 404)
        for listed in ("files", "batches"):
            self.assertEqual(self.client.get(f"/v1/{listed}").json()["data"], [])
        self.as_user("alice")
        self.assertEqual(self.shown(batch_id)["status"], "validating")

    def test_files_and_batches_of_an_owner_have_limits(self) -> None:
        self.as_user("alice")
        with override_settings(API_KEY_MAX_FILE_BYTES=15):
            self.assertEqual(self.upload(b"x" * 10).status_code, 200)
            answer = self.upload(b"x" * 10)
            self.assertEqual((answer.status_code, answer.json()["error"]["code"]), (429, "too_many_files"))
        file_id = self.stored(line("a"))
        with patch("api.file_batches.batches.MOST_UNFINISHED", 1):
            self.assertEqual(self.create(file_id).status_code, 200)
            self.assertEqual(self.create(file_id).status_code, 429)
        self.assertGreater(MOST_UNFINISHED, 1)

    def test_jobs_belong_to_the_owner_of_the_batch_and_name_its_key(self) -> None:
        self.as_user("alice")
        batch_id = self.begin(line("a"))
        self.turn(batch_id), self.turn(batch_id)
        job = Job.objects.get()
        self.assertEqual((str(job.owner), job.key_start), ("alice", self.keys["alice"][:12]))
        self.assertEqual(self.run_to_end(batch_id)["status"], "completed")
        self.assertEqual(StoredFile.objects.filter(owner=job.owner, state=FileState.STORED).count(), 2)
        self.assertEqual(FileBatch.objects.get().status, BatchStatus.COMPLETED)
        self.assertEqual(lines.MOST_LINES, 50_000)
