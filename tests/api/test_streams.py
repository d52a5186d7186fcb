"""Streams as clients see them: who may read them, where they begin, what is refused before the first byte."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from unittest.mock import patch
from uuid import uuid4

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import OperationalError
from django.test import override_settings
from huggingface_hub.inference._common import _stream_text_generation_response

from api.in_process_client import InProcessClient
from api.models import ApiKey
from batch_inference_client import ClientError
from inference import process_resources
from inference.broker import redis_client
from inference.errors import BrokerUnavailable
from inference.models import Job
from inference.store import transitions
from inference.streams import disconnect_cancellation, reader
from inference.streams.positions import BEGINNING
from inference.upkeep import retention
from tests.api.base import ApiTestCase, Response
from tests.conditions import eventually
from tests.generating import MODELS, Attempt, Generator, pieces, text_of

WORDS = "/v1/models/words"
OTHERS = """
[vectors]
engine = "tests.echo:EchoEngine"
task = "feature-extraction"
"""


class ServerSentEvent(NamedTuple):
    name: str
    id: str
    data: Any


def parse_events(pieces: Iterable[bytes]) -> Iterator[ServerSentEvent]:
    """What an event source tells of it, event by event."""
    for block in b"".join(pieces).decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        if "data" in fields:
            yield ServerSentEvent(fields["event"], fields.get("id", ""), json.loads(fields["data"]))


def text(events: Iterable[ServerSentEvent]) -> str:
    return "".join(event.data["token"]["text"] for event in events if event.name == "delta")


class StreamCase(ApiTestCase):
    def setUp(self) -> None:
        super().setUp()
        file = self.enterContext(tempfile.NamedTemporaryFile("w", suffix=".toml"))
        file.write(MODELS + OTHERS)
        file.flush()
        self.enterContext(override_settings(MODELS_FILE=settings.BASE_DIR / file.name))

    def idle_generator(self) -> Generator:
        """Have a living worker that takes no job until it is started."""
        return Generator()

    @contextlib.contextmanager
    def generator(self) -> Iterator[None]:
        generator = self.idle_generator()
        generator.start()
        try:
            yield
        finally:
            generator.stopping.set()
            generator.join()

    def job(self, **fields: Any) -> Job:
        return Job.objects.create(**{"model": "words", "inputs": "once", **fields})

    def stream(self, job: Job, query: str = "", **headers: str) -> Response:
        answer = self.client.get(f"/v1/jobs/{job.pk}/stream{query}", headers=headers)
        self.addCleanup(answer.close)
        return answer

    def events(self, answer: Response) -> list[ServerSentEvent]:
        return list(self.as_they_come(answer))

    def as_they_come(self, answer: Response) -> Iterator[ServerSentEvent]:
        self.assertEqual(answer.status_code, 200)
        self.assertEqual(answer["Content-Type"], "text/event-stream")
        self.assertEqual((answer["Cache-Control"], answer["X-Accel-Buffering"]), ("no-cache", "no"))
        return (event for piece in answer.streaming_content for event in parse_events([piece]))  # type: ignore[attr-defined]


class PostTests(StreamCase):
    def test_text_comes_as_it_is_generated_between_the_job_and_its_end(self) -> None:
        self.idle_generator()
        answer = self.post(WORDS, {"inputs": "once", "stream": True})
        job = Job.objects.get()
        attempt, events = Attempt(job), self.as_they_come(answer)
        first = next(events)
        self.assertEqual(first.data["job"], {"id": str(job.pk), "stream": f"/v1/jobs/{job.pk}/stream"})
        for number, piece in enumerate(pieces("once", 5), 1):
            attempt.write(piece)
            event = next(events)
            self.assertEqual((event.data["token"]["text"], event.data["tokens"]), (piece, number))
        attempt.end()
        (end,) = events
        self.assertEqual((end.name, end.data["generated_text"]), ("end", text_of("once", 5)))
        shown = self.client.get(f"/v1/jobs/{job.pk}").json()
        self.assertEqual(end.data["job"], shown)
        self.assertEqual(
            text(parse_events(self.stream(job, **{"Last-Event-ID": first.id}).streaming_content)),  # type: ignore[attr-defined]
            text_of("once", 5),
        )

    def test_hugging_face_s_client_reads_its_text(self) -> None:
        with self.generator():
            answer = self.post(WORDS, {"inputs": "once", "stream": True})
            lines = b"".join(answer.streaming_content).decode().splitlines()  # type: ignore[attr-defined]
        self.assertEqual("".join(map(str, _stream_text_generation_response(lines, details=False))), text_of("once", 20))

    def test_what_is_not_streamed_is_refused_and_nothing_is_stored(self) -> None:
        with self.generator():
            for path, body, words in (
                ("/v1/models/vectors", {"inputs": "x"}, "does not generate text"),
                (WORDS, {"inputs": ["x", "y"]}, "the answer to one input is"),
                (WORDS, {"inputs": ["x"]}, "the answer to one input is"),
            ):
                with self.subTest(body=body):
                    problem = self.assert_problem(self.post(path, {**body, "stream": True}), 422, "invalid_input")
                    self.assertIn(words, problem["detail"])
                    self.assertEqual(problem["errors"][0]["field"], "stream")
            for query, is_streamed in (
                ("timeout=3", True),
                ("on_disconnect=cancel", False),
                ("on_disconnect=no", True),
            ):
                with self.subTest(query):
                    answer = self.post(f"{WORDS}?{query}", {"inputs": "x", "stream": is_streamed})
                    self.assert_problem(answer, 400, "bad_request")
            self.assert_problem(self.post(WORDS, {"inputs": 7, "stream": True}), 422, "invalid_input")
            self.assert_problem(self.post(WORDS, {"inputs": "x", "stream": 1}), 422, "invalid_input")
        self.assertEqual(Job.objects.count(), 0)

    def test_without_a_worker_nothing_is_stored(self) -> None:
        self.assert_problem(self.post(WORDS, {"inputs": "x", "stream": True}), 503, "no_worker")
        self.assertEqual(Job.objects.count(), 0)

    def test_the_same_idempotency_key_is_the_same_stream(self) -> None:
        with self.generator():
            sent = [self.post(WORDS, {"inputs": "x", "stream": True}, headers={"Idempotency-Key": "k"}) for _ in "ab"]
            first, second = (self.events(answer) for answer in sent)
        self.assertEqual(text(first), text(second))
        self.assertEqual(Job.objects.count(), 1)


class GetTests(StreamCase):
    def test_a_finished_job_is_streamed_from_its_row_from_any_character_on(self) -> None:
        job, whole = self.job(), text_of("once", 6)
        attempt = Attempt(job)
        attempt.write(*pieces("once", 6))
        ids = [event.id for event in self.events(self.running(job, attempt))]
        redis_client.get_client().flushdb()
        for last in ids:
            for answer in (self.stream(job, **{"Last-Event-ID": last}), self.stream(job, f"?last_event_id={last}")):
                events = self.events(answer)
                self.assertEqual(whole[: int(last.partition("-")[0])] + text(events), whole)
                self.assertEqual(events[-1].name, "end")

    def running(self, job: Job, attempt: Attempt) -> Response:
        answer = self.stream(job)
        attempt.end()
        return answer

    def test_the_header_is_newer_than_the_address(self) -> None:
        job = self.job()
        attempt = Attempt(job)
        attempt.write(*pieces("once", 3))
        *_, end = self.events(self.running(job, attempt))
        answer = self.stream(job, f"?last_event_id={BEGINNING.make_event_id(job.pk)}", **{"Last-Event-ID": end.id})
        self.assertEqual([event.name for event in self.events(answer)], ["end"])

    def test_made_up_ids_are_refused(self) -> None:
        job = self.job()
        for last in ("7", "0-xyz", BEGINNING.make_event_id(self.job().pk)):
            problem = self.assert_problem(self.stream(job, **{"Last-Event-ID": last}), 400, "bad_request")
            self.assertIn("Leave it out", problem["detail"])

    def test_a_failed_job_ends_with_its_error(self) -> None:
        job = self.job()
        Attempt(job).end(error_code="timed_out", error_detail="It took too long.")
        (end,) = self.events(self.stream(job))
        self.assertEqual(
            (end.name, end.data["error"], end.data["error_type"]), ("end", "It took too long.", "timed_out")
        )
        self.assertEqual(end.data["job"]["status"], "failed")
        self.assertNotIn("token", end.data)

    def test_a_cancelled_job_ends_with_that(self) -> None:
        job = self.job()
        transitions.cancel_job(job.pk)
        (end,) = self.events(self.stream(job))
        self.assertEqual((end.data["error_type"], end.data["job"]["status"]), ("cancelled", "cancelled"))

    def test_a_chat_is_streamed_without_its_earlier_messages(self) -> None:
        said = [{"role": "user", "content": "hello"}]
        begun = [*said, {"role": "assistant", "content": "well"}]
        for inputs, output, before, words in (
            (said, [*said, {"role": "assistant", "content": "hi"}], 0, "hi"),
            (begun, [*said, {"role": "assistant", "content": "well met"}], len("well"), " met"),
            (said, "hi", 0, "hi"),
        ):
            with self.subTest(words):
                job = self.job(inputs=inputs)
                Attempt(job).end(output=[{"generated_text": output}], prompt_length=before)
                self.assertEqual(text(self.events(self.stream(job))), words)

    def test_an_answer_to_a_message_of_the_assistant_is_streamed_whole(self) -> None:
        said = [{"role": "assistant", "content": "well"}]
        job = self.job(inputs=said, parameters={"continue_final_message": False})
        answer = [*said, {"role": "assistant", "content": "well met"}]
        Attempt(job).end(output=[{"generated_text": answer}], prompt_length=0)
        self.assertEqual(text(self.events(self.stream(job))), "well met")

    def test_details_come_at_the_end(self) -> None:
        job, details = self.job(), {"finish_reason": "length", "generated_tokens": 1}
        Attempt(job).end(output=[{"generated_text": "once more", "details": details}], prompt_length=len("once"))
        delta, end = self.events(self.stream(job))
        self.assertEqual((delta.data["token"]["text"], end.data["details"]), (" more", details))

    def test_jobs_without_one_text_have_no_stream(self) -> None:
        for fields in ({"model": "vectors"}, {"inputs": ["a", "b"], "size": 2}, {"model": "gone"}):
            problem = self.assert_problem(self.stream(self.job(**fields)), 400, "bad_request")
            self.assertIn("/output?wait=30", problem["detail"])

    def test_a_head_has_the_headers_alone(self) -> None:
        answer = self.client.head(f"/v1/jobs/{self.job().pk}/stream")
        self.assertEqual((answer.status_code, answer["Content-Type"], answer.content), (200, "text/event-stream", b""))
        self.assertEqual(self.client.head("/v1/jobs/nope/stream").status_code, 404)

    def test_a_removed_job_is_gone(self) -> None:
        with patch.object(retention, "may_have_been_removed", return_value=True):
            self.assert_problem(self.client.get(f"/v1/jobs/{uuid4()}/stream"), 410, "job_gone")


class WaitingTests(StreamCase):
    def test_a_stream_has_its_place_until_it_is_closed(self) -> None:
        with override_settings(MAX_WAITING_REQUESTS=1):
            job = self.job()
            answer = self.stream(job)
            problem = self.assert_problem(self.stream(job), 503, "overloaded")
            self.assertIn("Too many", problem["detail"])
            with self.generator():
                refused = self.post(WORDS, {"inputs": "x", "stream": True})
            self.assert_problem(refused, 503, "overloaded")
            self.assertEqual(Job.objects.count(), 1)
            answer.close()
            transitions.cancel_job(job.pk)
            self.assertEqual(len(self.events(self.stream(job))), 1)
        self.assertEqual(process_resources.current.wait_slots._held.total(), 0)  # noqa: SLF001

    def test_nothing_is_left_of_a_stream_after_its_client_goes(self) -> None:
        job = self.job()
        Attempt(job).write("once")
        answer = self.stream(job)
        pieces: Iterator[bytes] = iter(answer.streaming_content)  # type: ignore[attr-defined]
        self.assertEqual([next(pieces), next(pieces)[:12]], [b"retry: 1000\n\n", b"event: delta"])
        self.assertEqual(len(process_resources.current.hub), 1)
        answer.close()
        resources = process_resources.current
        self.assertEqual((len(resources.hub), resources.wait_slots._held.total()), (0, 0))  # noqa: SLF001
        self.assertEqual(Job.objects.get().status, "running")

    def test_the_job_is_cancelled_with_its_client_where_that_was_requested(self) -> None:
        job = self.job()
        answer = self.stream(job, "?on_disconnect=cancel")
        next(iter(answer.streaming_content))  # type: ignore[attr-defined]
        answer.close()
        eventually(lambda: Job.objects.get().status == "cancelled")

    def test_a_client_that_has_gone_before_the_first_byte_has_gone(self) -> None:
        self.idle_generator()
        self.post(f"{WORDS}?on_disconnect=cancel", {"inputs": "x", "stream": True}).close()
        eventually(lambda: Job.objects.get().status == "cancelled")
        resources = process_resources.current
        self.assertEqual((len(resources.hub), resources.wait_slots._held.total()), (0, 0))  # noqa: SLF001

    def test_a_job_that_was_accepted_is_streamed_though_the_database_goes_away_then(self) -> None:
        """An answer that it is away would have its client post it again."""
        path, body = f"{WORDS}?on_disconnect=cancel", {"inputs": "x", "stream": True}
        with (
            self.generator(),
            patch.object(disconnect_cancellation, "record_newest_reader", side_effect=OperationalError("away")),
        ):
            with self.assertLogs("api.views.streaming", "WARNING"):
                answer = self.post(path, body)
            self.assertEqual(self.events(answer)[-1].name, "end")
        with patch.object(disconnect_cancellation, "record_newest_reader", side_effect=OperationalError("away")):
            self.assert_problem(self.stream(Job.objects.get(), "?on_disconnect=cancel"), 503, "store_unavailable")

    def test_a_client_that_has_come_back_keeps_its_job_when_its_old_connection_is_closed(self) -> None:
        job = self.job()
        old, new = (self.stream(job, "?on_disconnect=cancel") for _ in range(2))
        for answer in (old, new):
            next(iter(answer.streaming_content))  # type: ignore[attr-defined]
        redis_client.get_client().flushdb()  # what it holds may be lost
        old.close()
        self.assertEqual(Job.objects.get().status, "queued")
        new.close()
        self.assertEqual(Job.objects.get().status, "cancelled")

    def test_so_does_one_that_came_back_while_redis_was_away(self) -> None:
        job = self.job()
        old = self.stream(job, "?on_disconnect=cancel")
        next(iter(old.streaming_content))  # type: ignore[attr-defined]
        with patch.object(redis_client, "borrow_client", side_effect=BrokerUnavailable("away")):
            new = self.stream(job, "?on_disconnect=cancel")
            next(iter(new.streaming_content))  # type: ignore[attr-defined]
        old.close()
        self.assertEqual(Job.objects.get().status, "queued")
        new.close()
        self.assertEqual(Job.objects.get().status, "cancelled")

    def test_a_stream_that_was_read_to_its_end_cancels_nothing(self) -> None:
        job = self.job()
        with patch.object(reader, "LONGEST_S", 1e-6):
            self.assertEqual([event.name for event in self.events(self.stream(job, "?on_disconnect=cancel"))], ["cut"])
        self.assertEqual(Job.objects.get().status, "queued")

    def test_a_process_that_stops_cancels_nothing(self) -> None:
        job = self.job()
        answer = self.stream(job, "?on_disconnect=cancel")
        next(iter(answer.streaming_content))  # type: ignore[attr-defined]
        with patch.object(process_resources.current.hub, "is_stopping", True):
            answer.close()
        self.assertEqual(Job.objects.get().status, "queued")

    def test_a_silent_stream_says_that_it_is_there(self) -> None:
        with patch.object(reader, "SILENCE_S", 0.01):
            pieces: Iterator[bytes] = iter(self.stream(self.job()).streaming_content)  # type: ignore[attr-defined]
            self.assertEqual([next(pieces) for _ in range(3)][1:], [b": keep-alive\n\n"] * 2)

    def test_a_cut_is_an_event(self) -> None:
        with patch.object(reader, "LONGEST_S", 1e-6):
            (cut,) = self.events(self.stream(self.job()))
        self.assertEqual((cut.name, cut.data["error_type"]), ("cut", "cut"))


class InProcessClientTests(StreamCase):
    def test_the_client_inside_django_streams_beside_the_rows_that_its_caller_reads(self) -> None:
        for number in range(3):
            self.job(inputs=f"once {number}", parameters={"max_new_tokens": 3})
        client = self.enterContext(InProcessClient())
        with self.generator():
            for row in Job.objects.iterator(chunk_size=1):
                events = list(client.job(str(row.pk)).stream())
                whole = text_of(row.inputs, 3)
                self.assertEqual("".join(event.text for event in events), whole)
                self.assertEqual((events[-1].job or {})["output"], [{"generated_text": row.inputs + whole}])
                again = client.job(str(row.pk)).stream(after=events[0].id)
                self.assertEqual(events[0].text + "".join(event.text for event in again), whole)
            self.assertEqual(list(client.stream("words", "new"))[-1].kind, "end")
        with self.assertRaises(ClientError) as refused:
            next(client.job(str(row.pk)).stream(after="7"))
        self.assertEqual(refused.exception.code, "bad_request")


@override_settings(API_KEY_REQUIRED=True)
class WhoTests(StreamCase):
    def key_of(self, name: str, **fields: Any) -> dict[str, str]:
        user = get_user_model().objects.create_user(name, **fields)
        return {"Authorization": f"Bearer {ApiKey.objects.issue_key(owner=user)[1]}"}

    def test_somebody_else_s_job_has_no_stream(self) -> None:
        own, other, staff = self.key_of("own"), self.key_of("other"), self.key_of("staff", is_staff=True)
        job = self.job(owner=get_user_model().objects.get(username="own"))
        transitions.cancel_job(job.pk)
        self.assert_problem(self.stream(job, **other), 404, "job_not_found")
        self.assert_problem(self.stream(job), 401, "unauthorized")
        for headers in (own, staff):
            self.assertEqual(len(self.events(self.stream(job, **headers))), 1)
        leaving = f"/v1/jobs/{job.pk}/stream?on_disconnect=cancel"
        self.assert_problem(self.client.get(leaving, headers=staff), 403, "forbidden")
