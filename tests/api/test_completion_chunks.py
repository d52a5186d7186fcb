"""Completions as they are generated: what each event becomes, and where a stream is read on."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any
from uuid import uuid4

from django.test import SimpleTestCase, override_settings

from api.answers.completions import chunks
from api.answers.completions.completion import CHAT, TEXT, CompletionKind
from inference.errors import EngineError
from inference.models import Job, Status
from inference.streams.events import Delta, End, Event, Interrupted, KeepAlive, Restart
from inference.streams.positions import BEGINNING
from tests.api.base import ApiTestCase, Response
from tests.api.test_completions import CHAT as CHATS
from tests.api.test_completions import HELLO, MODELS_FILE, generated
from tests.api.test_completions import TEXT as TEXTS

DETAILS = {"finish_reason": "length", "prompt_tokens": 2, "generated_tokens": 3}
PROMPTS = {"model": "prompts", "messages": HELLO, "stream": True}


def documents(pieces: Iterable[bytes]) -> list[Any]:
    """The data of a stream, without its last line, by the strictest of its readers: each block is a chunk."""
    blocks = [block for block in b"".join(pieces).decode().split("\n\n") if block and not block.startswith(":")]
    return [json.loads(block.removeprefix("data: ")) for block in blocks if block != "data: [DONE]"]


def text(chunks: Iterable[Any]) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(choice["delta"].get("content", "") if "delta" in choice else choice["text"] for choice in choices)


@override_settings(MODELS_FILE=MODELS_FILE)
class ChunkTests(SimpleTestCase):
    def setUp(self) -> None:
        self.job = Job(model="prompts", inputs=HELLO)

    def written(self, *events: Event, kind: CompletionKind = CHAT, **options: Any) -> list[bytes]:
        return list(chunks.write_completion_chunks(self.job, iter(events), kind=kind, after=BEGINNING, **options))

    def end(self, **values: Any) -> End:
        values = {"status": Status.SUCCEEDED, "output": [{"generated_text": "ab", "details": DETAILS}], **values}
        for name, value in values.items():
            setattr(self.job, name, value)
        return End(job=self.job, text="ab" if values["status"] == Status.SUCCEEDED else None, id="2-x")

    def test_a_chat(self) -> None:
        pieces = self.written(Delta(text="a", id="1-x"), Delta(text="b", id="2-x"), self.end())
        self.assertEqual(pieces[-1], b"data: [DONE]\n\n")
        chunks = documents(pieces)
        self.assertEqual({chunk["object"] for chunk in chunks}, {"chat.completion.chunk"})
        self.assertEqual({chunk["id"] for chunk in chunks}, {f"chatcmpl-{self.job.id}"})
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        self.assertEqual(deltas, [{"role": "assistant", "content": ""}, {"content": "a"}, {"content": "b"}, {}])
        self.assertEqual([chunk["choices"][0]["finish_reason"] for chunk in chunks], [None, None, None, "length"])
        self.assertEqual(
            [chunk["event_id"] for chunk in chunks], [BEGINNING.make_event_id(self.job.id), "1-x", "2-x", "2-x"]
        )
        self.assertNotIn("usage", chunks[0])

    def test_a_text(self) -> None:
        chunks = documents(self.written(Delta(text="ab", id="2-x"), self.end(), kind=TEXT))
        self.assertEqual({chunk["object"] for chunk in chunks}, {"text_completion"})
        self.assertEqual([chunk["choices"][0]["text"] for chunk in chunks], ["", "ab", ""])

    def test_usage_comes_last_where_it_is_requested(self) -> None:
        *others, last = documents(self.written(self.end(), include_usage=True))
        self.assertEqual({chunk["usage"] for chunk in others}, {None})
        self.assertEqual(last["choices"], [])
        self.assertEqual(last["usage"], {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5})

    def test_nothing_but_data_is_in_a_block(self) -> None:
        """OpenAI's client of Python takes a block with an id, or a time to come back after, for a chunk without one."""
        for piece in self.written(KeepAlive(), Delta(text="a\n\nb", id="4-x"), self.end()):
            self.assertRegex(piece, rb"\A(data: [^\n]+|: keep-alive)\n\n\Z")

    def test_what_ends_it_early_is_an_error_in_the_last_chunk(self) -> None:
        failed = {"status": Status.FAILED, "output": None, "error_code": EngineError.code, "error_detail": "It broke."}
        table: list[tuple[Event, str]] = [
            (Restart(id="0-x"), "restart"),
            (Interrupted(), "cut"),
            (self.end(**failed), "engine_error"),
        ]
        for event, code in table:
            with self.subTest(code):
                pieces = self.written(Delta(text="a", id="1-x"), event)
                error = documents(pieces)[-1]["error"]
                self.assertEqual((error["code"], error["type"]), (code, "server_error"))
                self.assertTrue(error["message"])
                self.assertNotIn(b"[DONE]", b"".join(pieces))

    def test_an_answer_that_is_no_text(self) -> None:
        end = End(job=self.end(output={"echo": 1}).job, text=None, id="0-x")
        self.assertEqual(documents(self.written(end))[-1]["error"]["code"], "bad_output")


@override_settings(MODELS_FILE=MODELS_FILE)
class StreamTests(ApiTestCase):
    def chunks(self, answer: Response) -> list[Any]:
        self.addCleanup(answer.close)
        self.assertEqual((answer.status_code, answer["Content-Type"]), (200, "text/event-stream"))
        return documents(answer.streaming_content)  # type: ignore[attr-defined]

    def test_what_is_streamed_is_the_answer(self) -> None:
        for path, body, expected in (
            (CHATS, PROMPTS, "<user:hello>"),
            (TEXTS, {"model": "prompts", "prompt": "hello", "stream": True}, "<hello>"),
            ("/v1/models/prompts/v1/chat/completions", {**PROMPTS, "model": "dummy"}, "<user:hello>"),
        ):
            with self.subTest(path), self.worker(generated):
                answer = self.post(path, {**body, "stream_options": {"include_usage": True}})
                chunks = self.chunks(answer)
                job = Job.objects.latest("created_at")
                self.assertEqual(answer["Content-Location"], f"/v1/jobs/{job.id}/stream")
                self.assertEqual(text(chunks), expected)
                self.assertEqual(chunks[-1]["usage"]["total_tokens"], 5)

    def test_it_is_read_on_after_any_chunk(self) -> None:
        with self.worker(generated):
            chunks = self.chunks(self.post(CHATS, PROMPTS))
        for number, chunk in enumerate(chunks, 1):
            with self.subTest(number):
                address = f"{CHATS}/{chunk['id']}?stream=true"
                rest = self.chunks(self.client.get(address, headers={"Last-Event-ID": chunk["event_id"]}))
                self.assertEqual(text(chunks[:number]) + text(rest), "<user:hello>")
                self.assertEqual(rest[-1]["choices"][0]["finish_reason"], "stop")
        whole = self.chunks(self.client.get(f"{CHATS}/{chunks[0]['id']}?stream=true"))
        self.assertEqual(text(whole), "<user:hello>")

    def test_with_a_key_of_its_own_a_request_that_is_sent_again_has_the_same_stream(self) -> None:
        with self.worker(generated):
            first, second = (self.chunks(self.post(CHATS, PROMPTS, headers={"Idempotency-Key": "a"})) for _ in range(2))
        self.assertEqual(
            ([chunk["id"] for chunk in first], Job.objects.count()), ([chunk["id"] for chunk in second], 1)
        )

    def test_errors_of_a_request_come_before_the_stream_begins(self) -> None:
        with self.worker(generated):
            job = Job.objects.create(model="prompts", inputs="x")
            wrong = {
                "max_tokens": self.post(CHATS, {**PROMPTS, "max_tokens": 0}),
                "stream": self.post(CHATS, {**PROMPTS, "stream": "yes"}),
                "stream_options": self.post(CHATS, {**PROMPTS, "stream_options": True}),
                "stream_options.include_usage": self.post(CHATS, {**PROMPTS, "stream_options": {"include_usage": 1}}),
            }
            for param, answer in wrong.items():
                with self.subTest(param):
                    self.assertEqual((answer.status_code, answer.json()["error"]["param"]), (400, param))
            place = {"Last-Event-ID": BEGINNING.make_event_id(uuid4())}
            for answer in (
                self.post(f"{CHATS}?timeout=3", PROMPTS),
                self.post(f"{CHATS}?on_disconnect=cancel", {**PROMPTS, "stream": False}),
                self.client.get(f"{CHATS}/chatcmpl-{job.id}?stream=true", headers=place),
                self.client.get(f"{CHATS}/chatcmpl-{job.id}?stream=1"),
            ):
                self.assertEqual((answer.status_code, list(answer.json())), (400, ["error"]))
        self.assertEqual(Job.objects.count(), 1)

    def test_nothing_is_stored_that_nobody_serves(self) -> None:
        answer = self.post(CHATS, PROMPTS)
        self.assertEqual((answer.status_code, answer.json()["error"]["code"]), (503, "no_worker"))
        self.assertEqual(Job.objects.count(), 0)
