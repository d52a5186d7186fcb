"""A job's page: what happened to it, in order, and its inputs and output as people read them."""

from __future__ import annotations

import base64
import datetime
import html
import io
import re
import struct
import uuid
import wave
import zlib
from typing import Any
from unittest.mock import Mock, patch

from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from inference.admin.rendering import display, inputs_outputs, job_media, job_payload
from inference.models import Bulk, Job, Status, Webhook, WebhookState
from inference.store.job_messages import make_message
from inference.streams import redis_streams
from inference.streams.chunks import Chunk
from inference.telemetry.control_characters import escape_text
from tests.conditions import ago
from tests.inference.admin.pages import BrowserCase
from tests.inference.test_admin import INVISIBLE, MARKUP, UNSEEN, AdminCase, make_job, make_worker, page_of


def png(width: int = 2, height: int = 2) -> str:
    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(b"\0" + b"\xff\x80\x00" * 2 + b"\0" + b"\x00\x80\xff" * 2))
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + head + pixels + chunk(b"IEND", b"")).decode()


def wav() -> str:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(b"\0\1" * 400)
    return base64.b64encode(file.getvalue()).decode()


class StoryTests(AdminCase):
    def story(self, job: Job) -> list[str]:
        shown = self.client.get(page_of(job)).context["story"]
        return [event.what for event in shown]

    def test_it_goes_from_acceptance_to_the_webhook(self) -> None:
        begun = ago(10)
        owner = User.objects.create_user("customer")
        job = make_job(
            status=Status.SUCCEEDED,
            owner=owner,
            request_id="req-1",
            route="/v1/embeddings",
            created_at=begun,
            worker=make_worker().pk,
            published_at=begun + datetime.timedelta(milliseconds=2),
            device="cuda:0",
            batch=uuid.uuid4(),
            batch_size=24,
            started_at=begun + datetime.timedelta(milliseconds=480),
            attempts=1,
            finished_at=begun + datetime.timedelta(milliseconds=600),
        )
        Webhook.objects.create(job=job, url="https://example.org/", state=WebhookState.DELIVERED, attempts=2)
        self.assertEqual(
            self.story(job),
            ["Accepted", "Message sent", "Fetched", "Claimed", "Succeeded", "Webhook delivered"],
        )
        page = self.text(page_of(job))
        for words in ("by customer at /v1/embeddings,", "+480 ms", "+600 ms", "worker@host", " on cuda:0, in ",
                     "a batch of 24", "after a run of 120 ms", "tried 2 times"):  # fmt: skip
            self.assertIn(words, page)

    def test_no_time_is_below_zero_where_the_clock_was_set_back(self) -> None:
        job = make_job(status=Status.SUCCEEDED, created_at=ago(), started_at=ago(3600), finished_at=ago(7200))
        page = self.text(page_of(job))
        self.assertIn("after a run of 0", page)
        self.assertNotRegex(page, r"-\d+ (ms|s|min|h)\b")

    def test_attempts_and_recoveries_stand_in_their_order(self) -> None:
        now = ago()
        job = make_job(
            status=Status.FAILED,
            attempts=4,
            recoveries=2,
            published_at=now,
            started_at=now,
            finished_at=now,
            batch=uuid.uuid4(),
            error_code="crashed",
            error_detail="its process died",
        )
        self.assertEqual(
            self.story(job),
            [
                "Accepted",
                "Claimed 3 times before",
                "Queued again: the process that ran it was lost",
                "Message sent again",
                "Fetched",
                "Claimed",
                "Failed",
            ],
        )
        page = self.text(page_of(job))
        for words in ("2 times, of at most 3; it now runs alone", "the 4th attempt", "its process died"):
            self.assertIn(words, page)

    def test_of_a_failure_it_has_what_was_raised_and_where_though_clients_read_neither(self) -> None:
        job = make_job(
            status=Status.FAILED,
            started_at=ago(),
            finished_at=ago(),
            error_code="engine_error",
            error_detail="It failed.",
            error_raised="KeyError: 'secret'",
            error_trace='File "mine.py", line 12',
        )
        page = self.text(page_of(job))
        for words in ("It failed. KeyError: 'secret'", 'File "mine.py", line 12'):
            self.assertEqual(page.count(html.escape(words)), 1, words)

    def test_one_that_waits_shows_its_place_and_what_keeps_it(self) -> None:
        make_job()
        job = make_job(published_at=ago(), expires_at=ago(hours=-1))
        self.assertEqual(self.story(job), ["Accepted", "Message sent", "Number 2 in the queue", "Expires"])
        self.assertIn("no living worker serves its model", self.text(page_of(job)))
        self.assertEqual(self.story(make_job())[1], "Message not sent yet")

    def test_one_that_runs_is_shown_as_running(self) -> None:
        soon = ago(-80)
        job = make_job(status=Status.RUNNING, started_at=ago(), attempts=1, lease_until=soon)
        self.assertEqual(self.story(job)[-2:], ["Claimed", "Running"])

    def test_each_end_is_shown(self) -> None:
        now = ago()
        for status, event in ((Status.CANCELLED, "Cancelled"), (Status.EXPIRED, "Expired")):
            self.assertEqual(self.story(make_job(status=status, finished_at=now))[-1], event)

    def test_a_list_in_parts_and_one_of_a_bulk(self) -> None:
        whole = make_job(inputs=[], parts=2, status=Status.RUNNING, attempts=1, started_at=ago())
        self.assertEqual(self.story(whole), ["Accepted", "First part started"])
        bulk = Bulk.objects.create(model="embeddings", total=1)
        self.assertIn("number 0 of", self.text(page_of(make_job(bulk=bulk, bulk_index=0))))

    def test_the_page_makes_a_bounded_number_of_queries(self) -> None:
        job = make_job(status=Status.SUCCEEDED, batch=uuid.uuid4(), worker=make_worker().pk, output=[1] * 9)
        self.client.get(page_of(job))
        with CaptureQueriesContext(
            connection,
        ) as queries:
            self.client.get(page_of(job))
        self.assertLessEqual(len(queries), 14)


class RetryAloneTests(AdminCase):
    def test_the_new_job_runs_with_nothing_beside_it(self) -> None:
        job = make_job(status=Status.FAILED, error_code="crashed", inputs="a text")
        self.client.post(reverse("admin:inference_job_steer", args=[job.pk]), {"action": "retry_alone"})
        new = Job.objects.exclude(pk=job.pk).get()
        self.assertEqual((new.inputs, new.status, new.attempts), ("a text", Status.QUEUED, 0))
        self.assertEqual(new.recoveries, settings.MAX_RECOVERIES - 1)
        self.assertTrue(make_message(new).alone)
        self.assertIn("To run alone", self.text(page_of(new)))
        self.assertIn("that runs alone", self.text(reverse("admin:inference_job_history", args=[job.pk])))


class ValueTests(AdminCase):
    def shown(self, inputs: Any, output: Any = None) -> str:
        return "".join(f"{one}{other or ''}" for _, one, other in inputs_outputs.render_pairs(inputs, output, str))

    def test_labels_have_bars(self) -> None:
        output = [[{"label": "POSITIVE", "score": 0.97}, {"label": "NEGATIVE", "score": 0.03}]]
        shown = self.shown("a text", output)
        self.assertRegex(shown, r'POSITIVE</th><td><meter max="1" value="0.97"></meter>')

    def test_what_was_found_is_marked_in_its_text(self) -> None:
        found = [{"entity_group": "LOC", "start": 10, "end": 16, "score": 0.99},
                 {"entity": "PER", "start": 0, "end": 3}, {"entity": "PER", "start": 1, "end": 12}]  # fmt: skip
        shown = self.shown("Ada is in London.", found)
        self.assertEqual(
            re.findall(r"<mark title=\"(.+?)\">(\w+)<small>", shown), [("PER", "Ada"), ("LOC 0.99", "London")]
        )

    def test_of_many_inputs_each_stands_beside_its_output(self) -> None:
        shown = list(inputs_outputs.render_pairs(["a", "b"], [[0.5] * 8, [0.25] * 8], str))
        self.assertEqual([number for number, _, _ in shown], [0, 1])
        self.assertTrue(all("<svg" in str(output) for _, _, output in shown))
        self.assertEqual(len(list(inputs_outputs.render_pairs(["x"] * 500, None, str))), inputs_outputs.MOST_ITEMS)
        counts = (1, inputs_outputs.MOST_ITEMS, 500)
        self.assertEqual([inputs_outputs.count_omitted_inputs(["x"] * count) for count in counts], [0, 0, 480])

    def test_a_vector_is_drawn(self) -> None:
        shown = self.shown("a", [0.5, -0.5] * 200)
        self.assertIn("400 numbers from -0.5 to 0.5, norm 10", shown)
        self.assertEqual(shown.count("<path"), 1)
        self.assertLess(len(shown), 8000)
        for odd in ([float("inf")] * 9, [float("nan")] * 9, [1e308] * 9, [10**400] * 9, [True] * 9, [0.0] * 9):
            self.shown("a", odd)
        self.assertNotIn("<path", self.shown({"prompt_token_ids": [504, 3575] * 200}))

    def test_a_long_text_is_folded(self) -> None:
        shown = self.shown("word " * 500)
        self.assertIn("<details", shown)
        self.assertIn("2,500 characters", shown)
        self.assertNotIn("<details", self.shown("a word"))

    def test_a_chat_is_shown_message_by_message(self) -> None:
        shown = self.shown([{"role": "user", "content": "Hi"}], [{"generated_text": "Hello"}])
        self.assertRegex(shown, r"<dt>user</dt><dd><pre class=\"data\">Hi</pre>")
        self.assertRegex(shown, r"<dt>generated_text</dt><dd><pre class=\"data\">Hello</pre>")

    def test_nothing_that_was_written_acts_on_the_reader(self) -> None:
        """In each place of each shape."""
        for evil in (*MARKUP, *INVISIBLE):
            entry = {
                "label": evil,
                "score": 1.0,
                "entity": evil,
                "start": 0,
                "end": 1,
                "box": {evil: evil},
                "word": evil,
            }
            for inputs, output in (
                (evil, evil), (evil * 90, {evil: evil * 90}), ([evil, evil], [[entry], [entry]]), (evil, [entry]),
                ([{"role": evil, "content": evil}], [{"generated_text": evil}]), (evil, {evil: [0.5] * 9, "x": entry}),
                (evil, [{"entity": evil, "start": 0, "end": len(evil), "score": evil}]), ([evil], [None]),
            ):  # fmt: skip
                shown = self.shown(inputs, output)
                self.assertFalse(evil in MARKUP and evil in shown, shown)
                self.assertIsNone(UNSEEN.search(shown), evil)
                self.assertNotRegex(shown, r"<(script|iframe|svg/|style|base|meta |form|b |x )")

    def test_shapes_that_only_look_known_are_shown_as_they_are(self) -> None:
        shapes: tuple[Any, ...] = (
            [{"label": 1, "score": 1}], [{"label": "x", "score": "y"}], [{"start": 5, "end": 2, "entity": "x"}],
            [{"start": 0, "end": 10**9, "entity": "x"}], [{"start": True, "end": 2, "label": "x"}], [[]], [{}], {},
            [], 0, None, False, "", [{"role": 1}], {"x": []}, [[[[[]]]]],
        )  # fmt: skip
        for output in shapes:
            self.shown("a text", output)
            self.shown(output, output)

    def test_of_megabytes_no_more_is_looked_at_than_a_page_shows(self) -> None:
        for evil in ("\u202e", '<b "\n'):
            many = [f"{number}{evil}" for number in range(200_000)]
            deep: list[Any] = ["\n"] * 200_000
            for _ in range(60):  # as deep as they may be: each line begins with 120 spaces
                deep = [[], deep]
            for value in (
                many, dict.fromkeys(many, 1.5), {"deep": [[many]] * 99}, {evil * 1_000_000: {evil * 1_000_000: "x"}},
                [{"label": evil * 1_000_000, "score": 1.0, "box": many}] * 2,
                [{"role": evil * 1_000_000, "content": many}], deep,
            ):  # fmt: skip
                looked = Mock(side_effect=escape_text)
                with patch.object(display, "escape_text", looked), patch.object(inputs_outputs, "escape_text", looked):
                    shown = self.shown("a", value)
                length = sum(len(call.args[0]) for call in looked.call_args_list)
                self.assertLess(length, 10 * display.LONGEST_TEXT)
                self.assertLess(len(shown), 30 * display.LONGEST_TEXT)
        self.assertIn("and more", str(display.format_json(many)))
        self.assertNotIn("and more", str(display.format_json({"few": ["a", {"b": None}]})))

    def test_what_is_too_much_for_a_page_is_not_read(self) -> None:
        job = make_job(inputs="x" * 500, output=["y"], status=Status.SUCCEEDED)
        with patch.object(job_payload, "MOST", 400), CaptureQueriesContext(connection) as queries:
            page = self.text(page_of(job))
        self.assertIn("Too large to show: inputs, 502 characters", page)
        reads = [query["sql"] for query in queries if 'SELECT "inference_job"."inputs"' in query["sql"]]
        self.assertEqual(reads, [])


class MediaTests(AdminCase):
    def get(self, job: Job, *path: Any) -> Any:
        return self.client.get(
            reverse("admin:inference_job_media", args=[job.pk]), {"at": job_media.encode_value_path(path[0], path[1:])}
        )

    def test_images_and_sounds_are_shown_and_played(self) -> None:
        job = make_job(
            inputs=[png(), wav(), f"data:image/png;base64,{png()}"], output={"image": png()}, status="succeeded"
        )
        page = self.text(page_of(job))
        self.assertEqual((page.count("<img class="), page.count("<audio controls")), (3, 1))
        for path, kind in ((("inputs", 0), "image/png"), (("inputs", 1), "audio/wav"), (("inputs", 2), "image/png"),
                           (("output", "image"), "image/png")):  # fmt: skip
            answer = self.get(job, *path)
            self.assertEqual(answer.headers["Content-Type"], kind)
            self.assertEqual(answer.headers["Content-Security-Policy"], job_media.POLICY)
            self.assertEqual(answer.headers["X-Content-Type-Options"], "nosniff")
        self.assertEqual(self.get(job, "inputs", 0).content, base64.b64decode(png()))

    def test_what_a_browser_could_run_is_not_handed_out(self) -> None:
        svg = base64.b64encode(b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'>" + b" " * 60).decode()
        html = base64.b64encode(b"<html><script>alert(1)</script>" + b" " * 60).decode()
        job = make_job(inputs=[svg, html, f"data:text/html;base64,{html}", "no base64! " * 9, png()[:60] + "!" * 60])
        for place in range(5):
            self.assertEqual(self.get(job, "inputs", place).status_code, 404)
        self.assertNotIn("<img class=", self.text(page_of(job)).replace(png()[:10], ""))
        # The text begins as an image does, and is no base64.
        self.assertIsNone(job_media.make_media_response(png()[: job_media.HEAD] + "!" * 60))

    def test_an_image_of_too_many_pixels_is_not(self) -> None:
        self.assertEqual(job_media.detect_media_type(png(100_000, 100_000)), "")
        self.assertEqual(job_media.detect_media_type("A" * (job_media.MOST_BYTES * 2)), "")

    def test_an_address_that_leads_nowhere_is_not_found(self) -> None:
        job = make_job(inputs={"a": [png()]})
        url = reverse("admin:inference_job_media", args=[job.pk])
        for address in ("", "x", "[]", '["inputs"]', '["inputs","b"]', '["inputs","a",-1]', '["inputs","a",7]',
                        '["inputs","a",true]', '["inputs",0]', '["parameters"]', "[" * 2000, '{"a":1}',
                        '["inputs","a",0,0]', '["inputs","a",1e9]'):  # fmt: skip
            self.assertEqual(self.client.get(url, {"at": address}).status_code, 404, address)

    def test_who_may_not_see_jobs_sees_none_of_them(self) -> None:
        job = make_job(inputs=png())
        self.client.force_login(User.objects.create_user("clerk", is_staff=True))
        self.assertEqual(self.get(job, "inputs").status_code, 403)
        self.assertEqual(self.client.get(reverse("admin:inference_job_now", args=[job.pk])).status_code, 403)


class LiveTests(BrowserCase):
    def test_text_arrives_on_the_page_and_its_end_too(self) -> None:
        self.log_in()
        job = make_job(status=Status.RUNNING, started_at=ago(), attempts=1)
        self.open(page_of(job))
        attempt = uuid.uuid4()
        redis_streams.write_chunks([Chunk(job_id=job.pk, attempt=attempt, at=0, text="Once <b>upon", tokens=2)])
        self.browser.wait_for("document.getElementById('arriving').textContent === 'Once <b>upon'")
        redis_streams.write_chunks([Chunk(job_id=job.pk, attempt=attempt, at=12, text=" a time", tokens=4)])
        self.browser.wait_for("document.getElementById('arriving').textContent === 'Once <b>upon a time'")
        Job.objects.filter(pk=job.pk).update(status=Status.SUCCEEDED, finished_at=ago(), output="Once")
        self.browser.wait_for("!document.getElementById('live') && !!document.querySelector('.badge-succeeded')")

    def test_images_and_sounds_load_under_the_pages_policy(self) -> None:
        self.log_in()
        self.open(page_of(make_job(inputs=[png(), wav()])))
        self.browser.wait_for("document.querySelector('img.shown').naturalWidth === 2")
        self.value("document.querySelector('audio').load()")
        self.value("document.querySelector('audio').preload = 'auto'")
        self.browser.wait_for("document.querySelector('audio').duration > 0")


class DisplayTests(AdminCase):
    def test_a_text_that_arrives_is_harmless_and_bounded(self) -> None:
        job_id = uuid.uuid4()
        redis_streams.write_chunks(
            [Chunk(job_id=job_id, attempt=uuid.uuid4(), at=0, text="\u202e" + "x" * 30_000, tokens=2)]
        )
        text = job_payload.read_text_so_far(job_id)
        self.assertTrue(text.startswith("\\u202e"))
        self.assertLess(len(text), display.LONGEST_TEXT + 10)
