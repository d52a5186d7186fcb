"""What a stream tells is the text of the job: no character is missing or doubled, wherever it is begun."""

from __future__ import annotations

import threading
import time
from typing import Any
from unittest.mock import Mock, patch
from uuid import uuid4

from django.db import connection
from django.db.models import Q
from django.test import TransactionTestCase

from inference import process_resources
from inference.broker import redis_client
from inference.errors import UnknownPosition
from inference.models import Job
from inference.store import transitions
from inference.streams import hub, reader, redis_streams
from inference.streams.events import Delta, End, Event, Interrupted, KeepAlive, Restart
from inference.streams.hub import StreamHub
from inference.streams.positions import BEGINNING, Position
from tests.conditions import PATIENCE_S, eventually
from tests.generating import Attempt, pieces

PROMPT = "once"
PIECES = pieces(PROMPT, 12)
TEXT = "".join(PIECES)


class Reader(threading.Thread):
    """One client. `step` lets it take one event after the other."""

    def __init__(
        self, job: Job, after: str | None = None, *, steps: bool = False, hub: StreamHub | None = None
    ) -> None:
        super().__init__(daemon=True)
        self.hub = process_resources.current.hub if hub is None else hub
        self.job = Job.objects.get(pk=job.pk)
        self.after = Position.from_event_id(after, job.pk) if after else BEGINNING
        self.events: list[Event] = []
        self.may_go_on = threading.Semaphore(0 if steps else 1_000_000)
        self.start()

    def run(self) -> None:
        try:
            for event in reader.stream_events(self.job, self.hub, after=self.after):
                self.events.append(event)
                self.may_go_on.acquire()
        finally:
            connection.close()

    @property
    def text(self) -> str:
        """What a client has that begins anew when it is told to."""
        text = ""
        for event in list(self.events):
            text = "" if isinstance(event, Restart) else text + (event.text if isinstance(event, Delta) else "")
        return text

    @property
    def scores(self) -> list[Any]:
        """The scores of the events, each of which has those of the tokens that begin in its text."""
        found: list[Any] = []
        for event in list(self.events):
            if isinstance(event, Delta):
                end = int(event.id.partition("-")[0])
                assert all(end - len(event.text) <= each[0]["start"] < end for each in event.scores), event
                found += event.scores
        return found

    @property
    def kinds(self) -> list[type[Any]]:
        """Neighbours of the same kind are one."""
        kinds = [type(event) for event in self.events if not isinstance(event, KeepAlive)]
        return [kind for number, kind in enumerate(kinds) if not number or kinds[number - 1] is not kind]

    def has(self, text: str) -> None:
        eventually(lambda: self.text == text, f"{text!r} is told")

    def has_ended(self) -> None:
        self.join(PATIENCE_S)
        assert not self.is_alive(), self.events

    def ends(self) -> End:
        self.has_ended()
        end = self.events[-1]
        assert isinstance(end, End)
        return end


def own_hub() -> StreamHub:
    return StreamHub(process_resources.current.listener)


class ReaderCase(TransactionTestCase):
    def setUp(self) -> None:
        redis_client.get_client().flushdb()
        self.job = Job.objects.create(model="words", inputs=PROMPT)

    def lose(self) -> None:
        """Whoever ran the job is lost."""
        transitions.requeue_lost_jobs(Q(pk=self.job.pk))


class ReaderTests(ReaderCase):
    def test_text_comes_as_it_is_written_and_then_the_end(self) -> None:
        reading = Reader(self.job)
        attempt = Attempt(self.job)
        for piece in PIECES:
            attempt.write(piece)
            reading.has(attempt.text)
        attempt.end()
        end = reading.ends()
        self.assertEqual((reading.text, end.text, end.job.status), (TEXT, TEXT, "succeeded"))
        self.assertEqual(end.job.output, [{"generated_text": PROMPT + TEXT}])
        self.assertNotIn("inputs", vars(end.job))
        self.assertEqual(reading.kinds, [Delta, End])
        self.assertEqual(len(process_resources.current.hub), 0)

    def test_a_client_that_comes_back_at_any_event_misses_and_repeats_nothing(self) -> None:
        first = Reader(self.job)
        attempt = Attempt(self.job)
        for piece in PIECES[:6]:
            attempt.write(piece)
            first.has(attempt.text)
        again = [(delta, Reader(self.job, delta.id)) for delta in first.events if isinstance(delta, Delta)]
        attempt.write(*PIECES[6:])
        attempt.end()
        first.ends()
        again += [(delta, Reader(self.job, delta.id)) for delta in first.events if isinstance(delta, Delta)]
        self.assertGreater(len(again), 12)
        for delta, reading in again:
            reading.ends()
            at = int(delta.id.partition("-")[0])
            self.assertEqual(TEXT[:at] + reading.text, TEXT)
            self.assertEqual(reading.kinds, [Delta, End] if at < len(TEXT) else [End])

    def test_scores_come_with_their_text_and_are_neither_missing_nor_doubled_behind_any_event(self) -> None:
        first = Reader(self.job)
        attempt = Attempt(self.job, scored=True)
        for piece in PIECES[:6]:
            attempt.write(piece)
            first.has(attempt.text)
        again = [Reader(self.job, delta.id) for delta in first.events if isinstance(delta, Delta)]
        attempt.chunk(PIECES[6])  # which is lost, until all of it is written again
        attempt.write(PIECES[7])
        attempt.rewrite(PIECES[8])
        first.has(attempt.text)
        again += [Reader(self.job), *(Reader(self.job, delta.id) for delta in first.events if isinstance(delta, Delta))]
        attempt.write(PIECES[9])
        first.has(attempt.text)
        attempt.chunk(PIECES[10])  # which the row has
        attempt.write(PIECES[11])
        attempt.end()
        first.ends()
        again += [Reader(self.job), *(Reader(self.job, delta.id) for delta in first.events if isinstance(delta, Delta))]
        self.assertEqual(first.scores, attempt.scores)
        for reading in again:
            reading.ends()
            self.assertEqual(reading.scores, [each for each in first.scores if each[0]["start"] >= reading.after.at])

    def test_a_new_attempt_with_the_same_text_goes_on_where_the_first_one_ended(self) -> None:
        reading = Reader(self.job)
        first = Attempt(self.job)
        first.write(*PIECES[:5])
        reading.has(first.text)
        self.lose()
        second = Attempt(self.job)
        for piece in PIECES:
            second.write(piece)
            first.write("too late")
        reading.has(TEXT)
        late = Reader(self.job)
        late.has(TEXT)
        second.end()
        for each in (reading, late):
            each.ends()
            self.assertEqual((each.kinds, each.text), ([Delta, End], TEXT))

    def test_a_new_attempt_with_another_text_begins_again_and_says_so(self) -> None:
        reading = Reader(self.job)
        first = Attempt(self.job)
        first.write(" another", " text")
        reading.has(first.text)
        self.lose()
        second = Attempt(self.job)
        for piece in PIECES:
            second.write(piece)
        reading.has(TEXT)
        delta = next(event for event in reading.events if isinstance(event, Delta))
        back = Reader(self.job, delta.id)  # with what the first attempt told
        back.has(TEXT)
        second.end()
        late = Reader(self.job, delta.id)  # the row tells it
        for each, kinds in ((reading, [Delta, Restart, Delta, End]), (back, [Delta, Restart, Delta, End]),
                            (late, [Restart, Delta, End])):  # fmt: skip
            each.ends()
            self.assertEqual((each.kinds[-3:], each.text), (kinds[-3:], TEXT))

    def test_a_shorter_text_than_what_was_sent_begins_again(self) -> None:
        reading = Reader(self.job)
        first = Attempt(self.job)
        first.write(*PIECES)
        reading.has(TEXT)
        self.lose()
        second = Attempt(self.job)
        second.write(*PIECES[:3])
        second.end()
        reading.ends()
        self.assertEqual((reading.kinds, reading.text), ([Delta, Restart, Delta, End], "".join(PIECES[:3])))

    def test_lost_text_is_read_from_the_row(self) -> None:
        for lost in (0, 4, 11):
            with self.subTest(lost=lost):
                self.job = Job.objects.create(model="words", inputs=PROMPT)
                reading = Reader(self.job)
                attempt = Attempt(self.job)
                for number, piece in enumerate(PIECES):
                    attempt.chunk(piece) if number == lost else attempt.write(piece)
                attempt.end()
                reading.ends()
                self.assertEqual((reading.kinds, reading.text), ([Delta, End], TEXT))

    def test_a_history_that_redis_forgot_is_read_from_the_row(self) -> None:
        reading = Reader(self.job)
        attempt = Attempt(self.job)
        attempt.write(*PIECES[:5])
        reading.has(attempt.text)
        redis_client.get_client().flushdb()
        attempt.write(*PIECES[5:])
        late = Reader(self.job)
        attempt.end()
        for each in (reading, late):
            each.ends()
            self.assertEqual((each.kinds, each.text), ([Delta, End], TEXT))

    def test_lost_text_is_sent_as_soon_as_the_whole_text_is_rewritten(self) -> None:
        reading = Reader(self.job)
        attempt = Attempt(self.job)
        attempt.write(*PIECES[:3])
        reading.has(attempt.text)
        attempt.chunk(PIECES[3])
        attempt.write(*PIECES[4:7])
        late = Reader(self.job)
        attempt.rewrite(*PIECES[7:9])
        for each in (reading, late):
            each.has(attempt.text)
        self.assertEqual(redis_client.get_client().xlen(redis_streams.make_stream_key(self.job.pk)), 1)
        attempt.write(*PIECES[9:])
        attempt.end()
        for each in (reading, late):
            each.ends()
            self.assertEqual((each.kinds, each.text), ([Delta, End], TEXT))

    def test_what_is_no_chunk_is_passed_over(self) -> None:
        key = redis_streams.make_stream_key(self.job.pk)
        for value in (b"", b"x" * 24 + b"\xff"):
            redis_client.get_client().xadd(key, {b"c": value})
        redis_client.get_client().xadd(key, {b"other": b"1"})
        attempt = Attempt(self.job)
        attempt.write(*PIECES)
        reading = Reader(self.job)
        reading.has(TEXT)
        attempt.end()
        reading.ends()

    def test_a_slow_reader_reads_what_it_was_too_late_for(self) -> None:
        with patch.object(hub, "MOST_HELD", 2), patch.object(hub, "PAGE", 3):
            slow, quick = Reader(self.job, steps=True), Reader(self.job)
            attempt = Attempt(self.job)
            for piece in PIECES:
                attempt.write(piece)
                quick.has(attempt.text)
            for _ in range(len(PIECES)):
                slow.may_go_on.release()
            slow.has(TEXT)
            attempt.end()
            slow.may_go_on.release()
            slow.ends()
        self.assertEqual((slow.kinds, slow.text), ([Delta, End], TEXT))

    def test_a_reader_that_takes_nothing_holds_nobody_and_has_little_held_for_it(self) -> None:
        stalled, quick = Reader(self.job, steps=True), Reader(self.job)
        attempt = Attempt(self.job)
        attempt.write(" first")
        eventually(lambda: stalled.events, "the stalled one has begun")
        for number in range(3 * hub.MOST_HELD):
            attempt.write(f" {number}")
        quick.has(attempt.text)
        (subscribers,) = process_resources.current.hub.subscribers.values()
        self.assertLessEqual(max(len(subscriber._held) for subscriber in subscribers), hub.MOST_HELD)  # noqa: SLF001
        stalled.may_go_on.release(1000)
        stalled.has(attempt.text)
        attempt.end()
        stalled.ends()

    def test_there_is_a_message_for_each_piece(self) -> None:
        """With a clock that stands, by which nothing is polled for; the listener may not have subscribed yet."""
        stands = Mock(monotonic=lambda: 0.0, sleep=time.sleep)
        with patch.object(hub, "time", stands):
            reading, attempt = Reader(self.job, hub=own_hub()), Attempt(self.job)
            for _ in range(3):
                before = reading.text

                def is_heard() -> bool:
                    attempt.write(" more")
                    return reading.text != before  # noqa: B023

                eventually(is_heard, "there is a message")
            attempt.end()
            reading.ends()
        self.assertEqual(reading.text, attempt.text)

    def test_a_missed_message_is_made_good_by_the_slow_poll(self) -> None:
        reading = Reader(self.job)
        with patch.object(hub, "POLL_S", 0.1), patch.object(redis_streams, "make_hint_channel_name", lambda: "nowhere"):
            attempt = Attempt(self.job)
            attempt.write(" heard late")
            reading.has(" heard late")
        attempt.end()
        reading.ends()

    def test_other_ends_come_after_what_was_generated(self) -> None:
        reading = Reader(self.job)
        attempt = Attempt(self.job)
        attempt.write(*PIECES[:2])
        reading.has(attempt.text)
        attempt.end(error_code="timed_out", error_detail="too slow")
        end = reading.ends()
        self.assertEqual((end.job.status, end.job.error_code, end.text), ("failed", "timed_out", None))
        self.assertEqual(reading.text, "".join(PIECES[:2]))

    def test_a_cancelled_job_ends_its_stream(self) -> None:
        reading = Reader(self.job)
        eventually(lambda: len(process_resources.current.hub) == 1)
        transitions.cancel_job(self.job.pk)
        self.assertEqual(reading.ends().job.status, "cancelled")

    def test_a_job_that_wrote_no_chunks_is_sent_whole_at_its_end(self) -> None:
        reading = Reader(self.job)
        attempt = Attempt(self.job)
        attempt.end(output=[{"generated_text": PROMPT + TEXT}], prompt_length=len(PROMPT))
        reading.ends()
        self.assertEqual((reading.kinds, reading.text), ([Delta, End], TEXT))

    def test_a_silent_stream_sends_keep_alives(self) -> None:
        with patch.object(reader, "SILENCE_S", 0.02):
            reading = Reader(self.job)
            eventually(lambda: len(reading.events) > 2, "it is silent")
            transitions.cancel_job(self.job.pk)
            reading.ends()
        self.assertEqual({type(event) for event in reading.events[:-1]}, {KeepAlive})

    def test_a_process_that_stops_cuts_its_streams(self) -> None:
        own = own_hub()
        reading = Reader(self.job, hub=own)
        eventually(lambda: len(own) == 1)
        own.end_streams()
        reading.has_ended()
        self.assertEqual(reading.kinds, [Interrupted])
        late = Reader(self.job, hub=own)
        late.has_ended()
        self.assertEqual(late.events, [Interrupted()])

    def test_a_stream_is_cut_after_its_longest_time(self) -> None:
        with patch.object(reader, "LONGEST_S", 0.0):
            reading = Reader(self.job)
            reading.has_ended()
        self.assertEqual(reading.events, [Interrupted()])

    def test_the_thread_ends_some_time_after_the_last_stream_and_comes_back(self) -> None:
        own = own_hub()
        with patch.object(hub, "LINGER_S", 0.0), patch.object(hub, "POLL_S", 0.05):
            for _ in range(2):
                job = Job.objects.create(model="words", inputs=PROMPT)
                reading, attempt = Reader(job, hub=own), Attempt(job)
                attempt.write(*PIECES)
                reading.has(TEXT)
                attempt.end()
                reading.ends()
                eventually(lambda: own._thread is None, "the thread ends")  # noqa: SLF001


class PositionTests(ReaderCase):
    def test_made_up_and_foreign_ids_are_refused(self) -> None:
        own = BEGINNING.make_event_id(self.job.pk)
        self.assertEqual(Position.from_event_id(own, self.job.pk), BEGINNING)
        others = BEGINNING.make_event_id(uuid4())
        for text in ("", "7", "0-", own + "A", own[:-1], own.replace("0-", "1-"), "0" + own, others, "-", "x" * 10_000,
                     "\u0661" + own[1:], own.upper(), "99999999999-AAAA", f" {own}"):  # fmt: skip
            with self.subTest(text[:50]), self.assertRaises(UnknownPosition):
                Position.from_event_id(text, self.job.pk)
