"""Streams over sockets, while web processes and Redis come and go, and clients leave or stall."""

from __future__ import annotations

import signal
import socket
from typing import Any
from uuid import UUID

import redis
from huggingface_hub import InferenceClient

from batch_inference_client import Client
from tests.conditions import PATIENCE_S, eventually
from tests.generating import FEW, text_of
from tests.ports import HOST
from tests.streaming import Listener, StreamCase

COUNT = 20  # pieces of a text
MANY = 200


class StreamTests(StreamCase):
    def held(self, count: int) -> tuple[UUID, str]:
        """Return a job whose text comes to its end once it is released, and that text."""
        self.hold()
        return self.stack.words("held", count), text_of("held", count)

    def status(self, job_id: UUID) -> str:
        return self.stack.jobs.get(pk=job_id).status

    def test_a_stream_is_read_on_at_another_web_process_when_the_first_is_killed(self) -> None:
        job_id, whole = self.held(COUNT)
        first = Listener(self.stack.ports[0], job_id)
        first.has(1)
        self.stack.children["web0"].kill()
        first.ends()
        second = Listener(self.stack.ports[1], job_id, after=first.id)
        self.stack.release()
        self.stack.start_other(0)
        self.assertEqual(second.ends()[-1], "end")
        self.assertEqual(first.text + second.text, whole)
        self.assertLess(len(first.text), len(whole))
        self.stack.ready()
        third = Listener(self.stack.ports[0], job_id, after=first.id)
        third.ends()
        self.assertEqual(first.text + third.text, whole)

    def test_a_web_process_that_is_stopped_cuts_its_streams_and_ends(self) -> None:
        job_id, whole = self.held(COUNT)
        with Client(self.url) as client:
            stream = client.job(str(job_id)).stream()
            first = next(stream)
            cut = Listener(self.stack.ports[0], job_id)
            cut.has(1)
            web = self.stack.children["web0"]
            web.process.send_signal(signal.SIGTERM)
            self.assertEqual(cut.ends()[-1], "cut")
            eventually(lambda: web.exit_code is not None, "the web server ends")
            self.stack.start_other(0)
            self.stack.release()
            events = [first, *stream]
        self.assertEqual("".join(event.text for event in events), whole)
        self.assertEqual({event.kind for event in events}, {"delta", "end"})
        self.stack.ready()

    def test_a_stream_is_complete_though_redis_was_away(self) -> None:
        job_id, whole = self.held(COUNT)
        reading = Listener(self.stack.port, job_id)
        reading.has(1)
        self.stack.children["broker"].kill()
        late = Listener(self.stack.port, job_id)
        self.stack.release()
        self.stack.start_broker()
        for each in (reading, late):
            self.assertEqual(each.ends()[-1], "end")
            self.assertEqual(each.text, whole)
        again = self.stack.words("back", 5)
        back = Listener(self.stack.port, again)
        back.ends()
        self.assertEqual(back.text, text_of("back", 5))

    def test_a_job_goes_on_without_its_reader_unless_its_stream_is_to_cancel_it(self) -> None:
        (goes_on, _), (ends, _) = self.held(COUNT), self.held(COUNT)
        for job_id, query in ((goes_on, ""), (ends, "?on_disconnect=cancel")):
            reading = Listener(self.stack.port, job_id, query=query)
            reading.has(1)
            reading.leave()
        eventually(lambda: self.status(ends) == "cancelled", "the job is cancelled")
        self.stack.release()
        self.stack.finished(goes_on)
        self.assertEqual(self.status(goes_on), "succeeded")

    def test_many_streams_are_open_at_once_and_others_are_served(self) -> None:
        jobs = [self.held(COUNT) for _ in range(MANY)]
        readers = [Listener(self.stack.port, job_id) for job_id, _ in jobs]
        for reading in readers:
            reading.has(1)
        self.assertLess(self.redis_connections(), 60)
        for _ in range(10):
            self.assertEqual(self.stack.get("/v1/models").status, 200)
        self.assertTrue(all(reading.is_alive() for reading in readers))
        self.stack.release()
        self.assertEqual({reading.ends()[-1] for reading in readers}, {"end"})
        self.assertEqual({reading.text for reading in readers}, {whole for _, whole in jobs})

    def redis_connections(self) -> int:
        """Of all processes of the service together."""
        with redis.Redis.from_url(self.stack.environment["REDIS_URL"]) as client:
            return len(client.client_list())

    def test_a_reader_that_stalls_keeps_nobody_waiting(self) -> None:
        job_id = self.stack.words("stalled", COUNT)
        with socket.create_connection((HOST, self.stack.port)) as stalled:
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            stalled.sendall(f"GET /v1/jobs/{job_id}/stream HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
            reading = Listener(self.stack.port, job_id)
            reading.ends()
        self.assertEqual(reading.text, text_of("stalled", COUNT))

    def test_hugging_face_s_client_streams(self) -> None:
        self.hold()
        client: Any = InferenceClient(model=f"{self.url}/v1/models/words", timeout=PATIENCE_S)
        coming = iter(client.text_generation("held", stream=True, max_new_tokens=COUNT))
        first = next(filter(None, coming))
        self.assertTrue(text_of("held", FEW).startswith(first), "before the rest was generated")
        self.stack.release()
        self.assertEqual(first + "".join(coming), text_of("held", COUNT))
