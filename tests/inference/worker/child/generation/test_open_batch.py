"""What a pool child does with a batch that stays open, beside its engine: claims, records, cancelling, limits."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast
from unittest.mock import Mock, patch
from uuid import UUID, uuid4

from django.test import TransactionTestCase
from django.utils import timezone

from inference import process_resources
from inference.catalog.parameters import ParameterSpec
from inference.catalog.specs import ModelSpec
from inference.engines.stepper import Progress
from inference.errors import DeviceFailed, ModelUnavailable, StoreUnavailable, TimedOut
from inference.models import Job, Status
from inference.store import job_rows, transitions
from inference.streams import reader, redis_streams
from inference.streams.cursor import StreamCursor
from inference.streams.events import Delta, End
from inference.streams.positions import BEGINNING
from inference.worker.calls import NO_JOB, BatchCall, BatchReport, ChildCommand, RemoteError
from inference.worker.child import batch_job_rows, served_calls
from inference.worker.child.generation import open_batch, text_publisher, time_limited_stepper
from inference.worker.child.generation.open_batch import COUNTED
from inference.worker.child.generation.open_batches import OpenBatches
from inference.worker.child.loaded_models import LoadedModels
from tests import words
from tests.echo import EchoEngine

WRITE = redis_streams.write_chunks
WORDS = ParameterSpec(type="integer", min=1, max=1000)


class SteppingCase(TransactionTestCase):
    time_limit_s = 3600.0

    def setUp(self) -> None:
        self.spec = ModelSpec(
            name="words",
            engine="tests.words:WordsEngine",
            parameters={"max_new_tokens": WORDS},
            time_limit_s=self.time_limit_s,
            options={"capacity": 100},
        )
        self.engine = words.WordsEngine(self.spec)
        self.engine.load("cpu")
        self.replica = LoadedModels(
            worker=uuid4(),
            device="cpu",
            host_device="cpu",
            specs={self.spec.digest: self.spec},
            engines={self.spec.load_digest: self.engine},
        )
        self.opened = OpenBatches()
        self.enterContext(patch.object(served_calls, "replica", self.replica, create=True))
        self.enterContext(patch.object(served_calls, "opened", self.opened))
        self.enterContext(patch.object(redis_streams, "write_chunks"))
        self.enterContext(patch.object(open_batch, "LOOK_S", 0.0))
        self.batch = uuid4()

    def job(self, tokens: int = 3, inputs: Any = "text") -> UUID:
        job = Job(model="words", inputs=inputs, parameters={"max_new_tokens": tokens})
        job_rows.insert_jobs([job_rows.convert_job_to_row(job)])
        return job.pk

    def call(self, *ids: UUID, goes_on: bool = False, command: int = ChildCommand.YIELD, **fields: Any) -> BatchReport:
        """One step, if not asked otherwise."""
        self.replica.shared.command = command
        call = BatchCall(
            batch=self.batch,
            model="words",
            digest=self.spec.digest,
            job_ids=ids,
            time_limit_s=3600,
            goes_on=goes_on,
            **fields,
        )
        return served_calls.run_batch(call)

    def row(self, job_id: UUID) -> Job:
        return Job.objects.get(pk=job_id)


class OpenBatchTests(SteppingCase):
    def test_jobs_join_and_end_each_by_itself(self) -> None:
        first = self.job(3)
        self.assertEqual(self.call(first).left, {first})
        second = self.job(1)
        report = self.call(second, goes_on=True)
        self.assertEqual((report.errors, report.left, report.room.tokens), ({second: ""}, {first}, 96))
        self.assertEqual((self.row(second).output, self.row(second).batch_size), (words.expected("text", 1), 2))
        self.assertEqual((self.call(goes_on=True).errors, self.opened.batches), ({first: ""}, {}))
        self.assertEqual(self.row(first).status, Status.SUCCEEDED)

    def test_to_the_end(self) -> None:
        jobs = [self.job(tokens) for tokens in (5, 2, 9)]
        report = self.call(*jobs, command=ChildCommand.DRAIN)
        self.assertEqual(
            (set(report.errors), report.left, report.tokens, len(report.firsts_s)), ({*jobs}, set(), 16, 3)
        )
        self.assertEqual(report.answers, (2, 5, 9))

    def test_one_that_is_cancelled_leaves_at_the_next_step(self) -> None:
        one, other = self.job(9), self.job(9)
        self.call(one, other)
        transitions.cancel_job(one)
        report = self.call(goes_on=True)
        self.assertEqual((report.left, report.errors, len(self.engine.stepper or ())), ({other}, {}, 1))

    def test_what_was_given_back_to_others_is_left_to_them(self) -> None:
        one = self.job(9)
        self.call(one)
        Job.objects.filter(pk=one).update(batch=uuid4())
        self.assertEqual((self.call(goes_on=True).left, self.row(one).status), (set(), Status.RUNNING))

    def test_those_inside_go_on_while_no_other_can_be_claimed(self) -> None:
        one, late = self.job(9), self.job(9)
        self.call(one)
        with patch.object(batch_job_rows, "claim_jobs", side_effect=StoreUnavailable("away")):
            report = self.call(late, goes_on=True)
        self.assertEqual((report.left, report.put_off), ({one}, {late}))

    def test_what_breaks_a_batch_leaves_nothing_in_the_model(self) -> None:
        one, late = self.job(9), self.job(9)
        self.call(one)
        with (
            patch.object(batch_job_rows, "claim_jobs", side_effect=RuntimeError("a bug")),
            self.assertRaises(RemoteError),
        ):
            self.call(late, goes_on=True)
        self.assertEqual((self.opened.batches, len(self.engine.stepper or ())), ({}, 0))

    def test_a_device_that_fails_in_a_step_raises_device_failed(self) -> None:
        with self.assertRaises(DeviceFailed):
            self.call(self.job(9), self.job(9, inputs={"fail": "device", "at": 2}), command=ChildCommand.DRAIN)

    def test_a_list_is_one_job(self) -> None:
        job_id = self.job(2, inputs=["one", "two"])
        self.call(job_id, command=ChildCommand.DRAIN)
        self.assertEqual(self.row(job_id).output, [words.expected("one", 2), words.expected("two", 2)])

    def test_the_error_of_a_list_names_the_place_of_an_input_that_cannot_run(self) -> None:
        bad = {"text": "bad", "fail": "exception", "at": 0}
        job_id = self.job(2, inputs=["one", bad])
        self.call(job_id, command=ChildCommand.DRAIN)
        self.assertIn("inputs[1]", self.row(job_id).error_detail)

    def test_parameters_that_the_row_must_not_have_fail_that_job_alone(self) -> None:
        bad, good = self.job(5000), self.job(2)
        report = self.call(bad, good, command=ChildCommand.DRAIN)
        self.assertEqual(report.errors, {bad: "invalid_input", good: ""})


class EngineLimitTests(SteppingCase):
    """Each call of the engine runs within the limit, and the main process can read of which job it is."""

    def setUp(self) -> None:
        super().setUp()
        self.seen: list[tuple[str, UUID | None]] = []
        self.is_limited = False
        self.enterContext(patch.object(time_limited_stepper, "end_process_after", self.limited))
        stepper = cast("words.Words", self.engine.stepper)
        self.engine.stepper = cast("words.Words", Watched(stepper, self.note))

    @contextlib.contextmanager
    def limited(self, limit_s: float) -> Iterator[None]:
        self.is_limited = limit_s == self.spec.time_limit_s
        yield
        self.is_limited = False

    def note(self, name: str) -> None:
        job = bytes(self.replica.shared.job)
        self.assertTrue(self.is_limited, name)
        self.seen.append((name, UUID(bytes=job) if job != NO_JOB else None))

    def test_each_call(self) -> None:
        one, cut, other = self.job(2), self.job(9), self.job(9)
        self.call(one, cut)
        transitions.cancel_job(cut)
        self.call(other, goes_on=True)
        self.opened.close_all()
        calls = set(self.seen)
        self.assertEqual(
            {("join", one), ("join", cut), ("join", other), ("leave", cut), ("leave", other)},
            {(name, job) for name, job in calls if job},
        )
        self.assertEqual(
            {name for name, job in calls if not job},
            {"step", "__len__", "room", "tokens_per_row", "capacity", "context"},
        )
        self.assertEqual(bytes(self.replica.shared.job), NO_JOB)

    def test_its_answer_is_read_within_it_too(self) -> None:
        note, job_id = self.note, self.job(1)

        class Answer(list[Any]):
            def __iter__(self) -> Iterator[Any]:
                note("read")
                return super().__iter__()

        progress = [Progress(key=(job_id, 0), tokens=1, answer=Answer(["text"]))]
        with patch.object(words.Words, "step", return_value=progress):
            self.call(job_id)
        self.assertEqual({job for name, job in self.seen if name == "read"}, {job_id})

    def test_the_leases_of_all_are_kept_while_one_after_the_other_is_read(self) -> None:
        jobs = [self.job(9) for _ in range(3)]
        kept: list[int] = []
        join = words.Words.join

        def slowly(*arguments: Any, **named: Any) -> None:
            kept.append(Job.objects.filter(lease_until__isnull=False).count())
            Job.objects.update(lease_until=None)
            self.now_s += self.time_limit_s
            join(*arguments, **named)

        self.now_s = time.monotonic()
        with (
            patch.object(open_batch, "time", Mock(monotonic=lambda: self.now_s)),
            patch.object(words.Words, "join", slowly),
        ):
            self.call(*jobs)
        self.assertEqual(kept, [3, 3, 3])


class Watched:
    """A stepper that tells of each call of it."""

    def __init__(self, stepper: words.Words, note: Callable[[str], None]) -> None:
        self.stepper, self.note = stepper, note

    def __getattr__(self, name: str) -> Any:
        self.note(name)
        return getattr(self.stepper, name)

    def __len__(self) -> int:
        self.note("__len__")
        return len(self.stepper)


class BesideTests(SteppingCase):
    """Another model runs in the same child, while a batch waits for its turn."""

    def setUp(self) -> None:
        super().setUp()
        self.other = ModelSpec(name="echo", engine="tests.echo:EchoEngine", time_limit_s=300)
        self.replica.specs[self.other.digest] = self.other
        self.replica.engines[self.other.load_digest] = EchoEngine(self.other)

    def beside(self, *, command: int = ChildCommand.CONTINUE, **fields: Any) -> BatchReport:
        self.replica.shared.command = command
        job = Job(model="echo", inputs="text")
        job_rows.insert_jobs([job_rows.convert_job_to_row(job)])
        fields = {"digest": self.other.digest, "waiting": (self.batch,), **fields}
        return served_calls.run_batch(
            BatchCall(batch=uuid4(), model="echo", job_ids=(job.pk,), time_limit_s=300, **fields)
        )

    def test_jobs_of_a_batch_that_waits_are_not_given_back_meanwhile(self) -> None:
        one = self.job(9)
        self.call(one)
        late = timezone.now() + timedelta(seconds=300 + self.time_limit_s)  # leases are moments of the real clock
        self.beside()
        self.assertTrue(Job.objects.filter(pk=one, lease_until__gt=late).exists())
        self.assertEqual(self.call(goes_on=True).left, {one})

    def test_one_that_the_main_process_has_lost_sight_of_is_closed(self) -> None:
        self.call(self.job(9))
        self.beside(waiting=())
        self.assertEqual((self.opened.batches, len(self.engine.stepper or ())), ({}, 0))

    def test_nothing_is_left_of_one_as_something_else_is_loaded(self) -> None:
        self.call(self.job(9))
        served_calls.apply_assignment(())
        self.assertEqual((self.opened.batches, len(self.engine.stepper or ())), ({}, 0))

    def test_the_last_call_has_what_waits_run_to_its_end(self) -> None:
        one = self.job(9)
        self.call(one)
        report = self.beside(command=ChildCommand.DRAIN)
        self.assertEqual((list(report.errors.values()), self.row(one).status), ([""], Status.SUCCEEDED))

    def test_also_when_that_call_fails(self) -> None:
        one = self.job(9)
        self.call(one)
        with self.assertRaises(ModelUnavailable):
            self.beside(command=ChildCommand.DRAIN, digest="of what is not loaded")
        self.assertEqual(self.row(one).output, words.expected("text", 9))

    def test_of_several_none_is_given_back_while_those_before_it_run(self) -> None:
        first, self.batch, second = (self.batch, self.call(self.job(9))), uuid4(), self.job(9)
        self.call(second, waiting=(first[0],))
        stood_by: list[UUID] = []
        with patch.object(open_batch.OpenBatch, "renew_leases_for", lambda batch, limit_s: stood_by.append(batch.id)):
            self.replica.shared.command = ChildCommand.DRAIN
            served_calls.run_open_batches_to_end()
        self.assertEqual((stood_by, self.row(second).status), ([self.batch], Status.SUCCEEDED))


class StreamTests(SteppingCase):
    def test_each_piece_is_published_by_itself_as_it_comes(self) -> None:
        """And not only with all of the text, which is told seldom."""
        one, write = self.job(9), cast("Mock", redis_streams.write_chunks)
        with patch.object(text_publisher, "WHOLE_S", 3600.0):
            self.call(one)
            for _ in range(2):
                self.call(goes_on=True)
        chunks = [chunk for call in write.call_args_list for chunk in call.args[0]]
        texts = [words.expected("text", count)[0]["generated_text"] for count in range(4)]
        self.assertEqual(
            [(chunk.at, texts[place] + chunk.text) for place, chunk in enumerate(chunks)],
            [(len(texts[place]), texts[place + 1]) for place in range(3)],
        )

    def test_in_a_long_call_too_text_is_published_again_a_moment_later(self) -> None:
        publisher, write = text_publisher.TextPublisher(self.batch), cast("Mock", redis_streams.write_chunks)
        sizes, now = [], 1000.0
        with patch.object(text_publisher, "time", Mock(monotonic=lambda: now)):
            for later_s in (0.0, text_publisher.PUBLISH_S / 2, text_publisher.PUBLISH_S):
                now += later_s
                publisher.add_text(uuid4(), "word", tokens=1)
                publisher.publish_if_due()
                sizes.append([len(call.args[0]) for call in write.call_args_list])
        self.assertEqual(sizes, [[1], [1], [1, 2]])

    def test_text_that_was_lost_on_its_way_is_published_again_while_the_job_runs(self) -> None:
        one = self.job(9)
        self.call(one)
        with patch.object(redis_streams, "write_chunks", WRITE), patch.object(text_publisher, "WHOLE_S", 0.0):
            self.call(goes_on=True)
        entries = redis_streams.read_entries({one: redis_streams.FIRST}, 10)[one]
        delta = StreamCursor(one, BEGINNING).take_new_text(entries)
        self.assertEqual(delta and delta.text, words.expected("text", 2)[0]["generated_text"])

    def test_scores_are_published_with_their_text_and_again_with_all_of_it(self) -> None:
        one, step, count = self.job(9), words.Words.step, itertools.count()

        def score(stepper: words.Words) -> list[Progress]:
            return [replace(each, scores=[({"start": 5 * next(count)}, [])]) for each in step(stepper)]

        with patch.object(words.Words, "step", score), patch.object(redis_streams, "write_chunks", WRITE):
            for whole_s, goes_on in ((0.0, False), (3600.0, True), (0.0, True), (3600.0, True)):
                with patch.object(text_publisher, "WHOLE_S", whole_s):
                    self.call(*(() if goes_on else (one,)), goes_on=goes_on)
        entries = redis_streams.read_entries({one: redis_streams.FIRST}, 10)[one]
        found = [(chunk.at, [each["start"] for each, _ in chunk.scores]) for _, chunk in entries]
        self.assertEqual(found, [(0, [0, 5, 10]), (14, [15])])

    def test_an_answer_that_begins_as_its_prompt_does_loses_no_character(self) -> None:
        answer = "All right then"
        with patch.object(words, "word", lambda value, place: answer.split()[place]):
            job_id = self.job(3, inputs="A")
            self.call(job_id, command=ChildCommand.DRAIN)
        events = list(reader.stream_events(self.row(job_id), process_resources.current.hub))
        self.assertEqual([event.text for event in events if isinstance(event, Delta)], [answer])
        self.assertEqual([event.text for event in events if isinstance(event, End)], [answer])


class LimitTests(SteppingCase):
    """On a clock of the test's own."""

    time_limit_s = 60.0

    def setUp(self) -> None:
        super().setUp()
        self.now_s = time.monotonic()  # an open batch reads the real clock as it is made
        self.enterContext(patch.object(open_batch, "time", Mock(monotonic=lambda: self.now_s)))

    def later(self) -> None:
        """Something else takes longer than a job may."""
        self.now_s += 2 * self.time_limit_s

    def let_steps_take(self, *seconds: float) -> None:
        """Let each step take so long; of several figures the last holds for all that follow."""
        step, left = cast("words.Words", self.engine.stepper).step, list(seconds)

        def slowly() -> Any:
            self.now_s += left.pop(0) if len(left) > 1 else left[0]
            return step()

        self.enterContext(patch.object(self.engine.stepper, "step", slowly))

    def test_a_job_past_the_limit_ends_with_its_text_and_frees_its_room(self) -> None:
        self.let_steps_take(COUNTED * self.time_limit_s + 1)  # four of them are the limit
        late = self.job(90)
        report = self.call(late, command=ChildCommand.DRAIN)
        self.assertEqual((report.errors, report.room.tokens, report.answers), ({late: ""}, 100, (4,)))
        row = self.row(late)
        self.assertEqual((row.status, row.output), (Status.SUCCEEDED, words.expected("text", 4)))

    def test_its_details_say_why_it_ended(self) -> None:
        self.let_steps_take(COUNTED * self.time_limit_s + 1)  # four of them are the limit
        with patch.object(
            batch_job_rows, "check_parameters_again", return_value={"max_new_tokens": 90, "details": True}
        ):
            self.call(late := self.job(90), command=ChildCommand.DRAIN)
        self.assertEqual(self.row(late).output[0]["details"], {"finish_reason": "length", "generated_tokens": 4})

    def test_a_list_past_the_limit_keeps_what_has_ended_and_what_has_begun(self) -> None:
        self.let_steps_take(COUNTED * self.time_limit_s + 1)  # four of them are the limit
        with patch.object(self.engine.stepper, "capacity", 10):
            self.call(late := self.job(8, inputs=["one", "two"]), command=ChildCommand.DRAIN)
        self.assertEqual(self.row(late).output, [words.expected("one", 4), words.expected("two", 0)])

    def test_the_text_is_what_the_model_makes_of_it_where_it_can(self) -> None:
        self.let_steps_take(COUNTED * self.time_limit_s + 1)  # four of them are the limit
        answer = [{"generated_text": "so far"}]
        with patch.object(self.engine.stepper, "finish", lambda key: Progress(key=key, answer=answer)):
            self.call(late := self.job(90), command=ChildCommand.DRAIN)
        self.assertEqual(self.row(late).output, answer)

    def test_a_model_may_have_no_answer_to_make_of_it(self) -> None:
        self.let_steps_take(COUNTED * self.time_limit_s + 1)  # four of them are the limit
        answer = TimedOut("Its time was over before its prompt was read.")
        with patch.object(self.engine.stepper, "finish", lambda key: Progress(key=key, answer=answer)):
            self.call(late := self.job(90), command=ChildCommand.DRAIN)
        row = self.row(late)
        self.assertEqual((row.error_code, row.error_detail), ("timed_out", answer.message))

    def test_a_job_without_a_word_at_the_limit_fails(self) -> None:
        self.let_steps_take(COUNTED * self.time_limit_s + 1)  # four of them are the limit
        with patch.object(words, "is_held", return_value=True):
            report = self.call(self.job(90), command=ChildCommand.DRAIN)
        self.assertEqual((set(report.errors.values()), report.room.tokens), ({"timed_out"}, 100))

    def test_what_its_child_does_between_two_calls_does_not_count(self) -> None:
        one = self.job(9)
        self.call(one)
        self.later()
        self.assertEqual((self.call(goes_on=True).left, self.row(one).status), ({one}, Status.RUNNING))

    def test_nor_does_a_wait_for_the_database_that_another_is_recorded_in(self) -> None:
        one, short = self.job(9), self.job(1)
        record = batch_job_rows.record_outcomes

        def slowly(*arguments: Any, **named: Any) -> Any:
            self.later()
            return record(*arguments, **named)

        with patch.object(batch_job_rows, "record_outcomes", slowly):
            self.assertEqual(self.call(one, short).errors, {short: ""})
        self.assertEqual(self.call(goes_on=True).left, {one})

    def test_a_pause_of_its_process_within_a_step_counts_as_a_part_of_the_limit(self) -> None:
        self.let_steps_take(0.0, 3 * self.time_limit_s, 0.0)
        report = self.call(self.job(9), command=ChildCommand.DRAIN)
        self.assertEqual((set(report.errors.values()), report.tokens), ({""}, 9))

    def test_one_that_goes_on_is_kept_for_longer(self) -> None:
        one = self.job(9)
        self.call(one)
        Job.objects.update(lease_until=None)
        self.call(goes_on=True)
        self.assertIsNone(self.row(one).lease_until)
        self.now_s += open_batch.KEEP_S + 1
        self.call(goes_on=True)
        self.assertIsNotNone(self.row(one).lease_until)

    def test_the_time_in_which_one_waits_for_the_room_of_others_does_not_count(self) -> None:
        self.let_steps_take(self.time_limit_s / 20)
        with patch.object(self.engine.stepper, "capacity", 20):
            report = self.call(self.job(15), self.job(15), command=ChildCommand.DRAIN)
        self.assertEqual((len(report.errors), set(report.errors.values()), report.tokens), (2, {""}, 30))
