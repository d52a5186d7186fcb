"""Streams over sockets, while web processes and Redis come and go, and clients leave or stall."""

from __future__ import annotations

import signal
import socket
from typing import Any
from uuid import UUID

import redis
from huggingface_hub import InferenceClient

from inference.client import Client
from tests.conditions import eventually
from tests.generating import text_of
from tests.ports import HOST
from tests.streaming import Listener, StreamCase

MANY = 200


class StreamTests(StreamCase):
    def status(self, job_id: UUID) -> str:
        return self.stack.jobs.get(pk=job_id).status

    def test_a_stream_is_read_on_at_another_web_process_when_the_first_is_killed(self) -> None:
        job_id, whole = self.stack.words("killed", 60), text_of("killed", 60)
        first = Listener(self.stack.ports[0], job_id)
        first.has(100)
        self.stack.children["web0"].kill()
        first.join(60)
        second = Listener(self.stack.ports[1], job_id, after=first.id)
        self.stack.start_other(0)
        self.assertEqual(second.ends()[-1], "end")
        self.assertEqual(first.text + second.text, whole)
        self.stack.ready()
        third = Listener(self.stack.ports[0], job_id, after=first.id)
        third.ends()
        self.assertEqual(first.text + third.text, whole)

    def test_a_web_process_that_is_stopped_cuts_its_streams_and_ends(self) -> None:
        job_id, whole = self.stack.words("stopped", 60), text_of("stopped", 60)
        with Client(self.url) as client:
            told = client.job(str(job_id)).stream()
            first = next(told)
            cut = Listener(self.stack.ports[0], job_id)
            cut.has(1)
            web = self.stack.children["web0"]
            web.process.send_signal(signal.SIGTERM)
            self.assertEqual(cut.ends()[-1], "cut")
            eventually(lambda: web.exit_code is not None, "the web server ends")
            self.stack.start_other(0)
            events = [first, *told]
        self.assertEqual("".join(event.text for event in events), whole)
        self.assertEqual({event.kind for event in events}, {"delta", "end"})
        self.stack.ready()

    def test_a_stream_is_complete_though_redis_was_away(self) -> None:
        job_id, whole = self.stack.words("away", 80), text_of("away", 80)
        reading = Listener(self.stack.port, job_id)
        reading.has(1)
        self.stack.children["broker"].kill()
        late = Listener(self.stack.port, job_id)
        self.stack.start_broker()
        for each in (reading, late):
            self.assertEqual(each.ends()[-1], "end")
            self.assertEqual(each.text, whole)
        again = self.stack.words("back", 5)
        back = Listener(self.stack.port, again)
        back.ends()
        self.assertEqual(back.text, text_of("back", 5))

    def test_a_job_goes_on_without_its_reader_unless_that_was_asked_for(self) -> None:
        goes_on, ends = self.stack.words("goes on", 40), self.stack.words("ends", 1000)
        for job_id, query in ((goes_on, ""), (ends, "?on_disconnect=cancel")):
            reading = Listener(self.stack.port, job_id, query=query)
            reading.has(1)
            reading.leave()
        eventually(lambda: self.status(ends) == "cancelled", "the job is cancelled")
        self.stack.finished(goes_on)
        self.assertEqual(self.status(goes_on), "succeeded")

    def test_many_streams_are_open_at_once_and_others_are_served(self) -> None:
        ids = [self.stack.words("many", 120) for _ in range(MANY)]
        readers = [Listener(self.stack.port, job_id) for job_id in ids]
        for reading in readers:
            reading.has(1)
        self.assertLess(self.redis_connections(), 60)
        while any(reading.is_alive() for reading in readers):
            self.assertEqual(self.stack.get("/v1/models").status, 200)
        self.assertEqual({reading.text for reading in readers}, {text_of("many", 120)})

    def redis_connections(self) -> int:
        """Of all processes of the service together."""
        with redis.Redis.from_url(self.stack.environment["REDIS_URL"]) as client:
            return len(client.client_list())

    def test_a_reader_that_stalls_keeps_nobody_waiting(self) -> None:
        job_id = self.stack.words("stalled", 60)
        with socket.create_connection((HOST, self.stack.port)) as stalled:
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            stalled.sendall(f"GET /v1/jobs/{job_id}/stream HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
            reading = Listener(self.stack.port, job_id)
            reading.ends()
        self.assertEqual(reading.text, text_of("stalled", 60))

    def test_hugging_face_s_client_streams(self) -> None:
        client: Any = InferenceClient(model=f"{self.url}/v1/models/words")
        told = list(client.text_generation("once", stream=True, max_new_tokens=5))
        self.assertEqual("".join(told), text_of("once", 5))
        self.assertGreater(len(told), 2)
