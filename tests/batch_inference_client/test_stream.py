"""The Python client streams, and reads on by itself."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Iterator
from unittest.mock import patch
from uuid import uuid4

from api import codec
from batch_inference_client import Client, ClientError, JobError, StreamEvent, command, sse
from batch_inference_client.service import Pauses
from batch_inference_client.stream import follow_events
from tests.conditions import PATIENCE_S
from tests.generating import text_of
from tests.streaming import StreamCase

COUNT = {"max_new_tokens": 6}
WHOLE = text_of("once", 6)


class StreamTests(StreamCase):
    def setUp(self) -> None:
        super().setUp()
        self.client = self.enterContext(Client(self.url, patience_s=PATIENCE_S))

    def test_all_of_the_text_comes_and_then_the_job(self) -> None:
        all_events = list(self.client.stream("words", "once", parameters=COUNT))
        self.assertEqual("".join(event.text for event in all_events), WHOLE)
        self.assertEqual([event.kind for event in all_events], ["delta"] * (len(all_events) - 1) + ["end"])
        job = all_events[-1].job or {}
        self.assertEqual(job["output"], [{"generated_text": "once" + WHOLE}])
        again = self.client.job(job["id"]).stream(after=all_events[0].id)
        self.assertEqual(all_events[0].text + "".join(event.text for event in again), WHOLE)

    def test_the_same_for_asyncio(self) -> None:
        async def read() -> str:
            return "".join([event.text async for event in self.client.astream("words", "once", parameters=COUNT)])

        self.assertEqual(asyncio.run(read()), WHOLE)

    def test_the_command_prints_the_text(self) -> None:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            status = command.main(
                ["--url", self.url, "run", "words", "once", "--stream", "--parameters", '{"max_new_tokens": 6}']
            )
        self.assertEqual((status, printed.getvalue()), (0, f"{WHOLE}\n"))

    def test_text_comes_as_it_is_generated_and_a_job_without_output_raises_what_it_failed_with(self) -> None:
        stream = self.client.stream("words", "once", parameters={"max_new_tokens": 1000})
        self.assertEqual(next(stream).kind, "delta")
        job = self.stack.jobs.latest("pk")
        self.assertFalse(job.is_finished)
        self.client.cancel(str(job.pk))
        with self.assertRaises(JobError) as failed:
            list(stream)
        self.assertEqual((failed.exception.code, failed.exception.job_id), ("cancelled", str(job.pk)))

    def test_what_is_refused_is_not_requested_again(self) -> None:
        job = self.client.submit("words", "once", parameters=COUNT)
        for stream, code in ((job.stream(after="7"), "bad_request"), (self.missing(), "job_not_found")):
            with self.subTest(code), self.assertRaises(ClientError) as refused:
                next(stream)
            self.assertEqual(refused.exception.code, code)

    def missing(self) -> Iterator[StreamEvent]:
        return follow_events(self.client.service, str(uuid4()), after="", patience_s=PATIENCE_S)

    def test_what_breaks_off_is_read_on_where_it_ended(self) -> None:
        """Whatever the connection brings at once, up to some byte of it."""
        cursors: list[str] = []
        job = self.client.submit("words", "once", parameters=COUNT)
        job.result(PATIENCE_S)
        whole = self.client.service.stream

        def cut(job_id: str, *, after: str) -> Iterator[StreamEvent | None]:
            cursors.append(after)
            for number, event in enumerate(whole(job_id, after=after)):
                if number and len(cursors) < 3:
                    raise ClientError("cut", code="unreachable", passing=True)
                yield event

        with patch.object(self.client.service, "stream", cut), patch.object(Pauses, "after_s", return_value=0.0):
            all_events = list(job.stream())
        self.assertEqual("".join(event.text for event in all_events), WHOLE)
        self.assertEqual(len(cursors), 3)

    def test_a_service_that_is_away_is_waited_for_as_long_as_the_patience_is(self) -> None:
        with Client("http://127.0.0.1:9", patience_s=0.3) as client, self.assertRaises(ClientError) as away:
            list(follow_events(client.service, str(uuid4()), after="", patience_s=0.3))
        self.assertEqual(away.exception.code, "unreachable")

    def test_characters_that_end_lines_elsewhere_are_text(self) -> None:
        text = "a\u2028b\x85c\u2029"
        body = b"event: delta\nid: 1-a\ndata: " + codec.write_json({"token": {"text": text}}) + b"\n\n"
        self.assertEqual([event and event.text for event in sse.parse_events([body])], [text])

    def test_events_are_found_however_the_bytes_come(self) -> None:
        body = (
            b"retry: 1000\n\n: keep-alive\n\n"
            b'event: delta\nid: 1-a\ndata: {"token":{"text":": \\n\xc3\xa4"}}\n\n'
            b'event: cut\ndata: {"error":"x"}\n\nevent: restart\nid: 0-b\ndata: {"error":"x"}\n\n'
        )
        for size in (1, 2, 7, len(body)):
            all_events = sse.parse_events(body[at : at + size] for at in range(0, len(body), size))
            self.assertEqual(
                [event and (event.kind, event.text, event.id) for event in all_events],
                [None, None, ("delta", ": \nä", "1-a"), None, ("restart", "", "0-b")],
            )
