import dataclasses
import datetime
import threading
from typing import Any
from unittest.mock import patch
from uuid import uuid4

from django.contrib.auth import get_user_model
from django.test import TransactionTestCase, override_settings
from django.utils import timezone

from api.auth import Principal
from api.views.base import get_visible_job
from inference import errors, process_resources
from inference.broker import publisher
from inference.catalog.lookup import get_spec
from inference.catalog.specs import ModelSpec
from inference.fields.worker_documents import LOADING
from inference.models import Job, Status, Webhook, Worker, WorkerState
from inference.store import notices
from inference.submission import admission, jobs
from inference.submission.submissions import Submission, Terms
from inference.values.priority import Priority
from tests.conditions import PATIENCE_S, eventually
from tests.inference.submission import patience
from tests.messages import messages_for

MODEL = "embeddings"
SPEC = get_spec(MODEL)


class JobsTests(TransactionTestCase):
    """The broker is the real one of the test run; there is no worker."""

    def setUp(self) -> None:
        process_resources.current.queue_counters.clear()
        patience.lend(self)

    def serve(self) -> Worker:
        return Worker.objects.create(name="w", pid=1, state=WorkerState.READY, model_names=[MODEL])

    def test_a_submitted_job_is_a_committed_row_and_a_message(self) -> None:
        job = jobs.submit(Submission(spec=SPEC, inputs="some text", priority=Priority.HIGH, request_id="r1"))
        row = Job.objects.get(pk=job.pk)
        self.assertEqual((row.status, row.inputs, row.size, row.priority), (Status.QUEUED, "some text", 1, 1))
        self.assertEqual(row.request_id, "r1")
        eventually(lambda: messages_for(job) == 1, "the message follows the row")

    def test_a_list_is_several_items_of_one_job(self) -> None:
        self.assertEqual(jobs.submit(Submission(spec=SPEC, inputs=["a", "b", "c"])).size, 3)

    def test_an_unknown_model_is_refused_with_the_known_ones(self) -> None:
        with self.assertRaisesRegex(errors.UnknownModel, "no model 'nope'. Known models: embeddings"):
            get_spec("nope")
        self.assertEqual(Job.objects.count(), 0)

    def test_a_job_is_accepted_while_the_broker_is_away(self) -> None:
        with patch.object(publisher, "publish_messages", side_effect=errors.BrokerUnavailable("away")):
            job = jobs.submit(Submission(spec=SPEC, inputs="x"))
            eventually(lambda: Job.objects.filter(pk=job.pk, published_at=None).exists())

    def test_a_full_queue_refuses_and_says_when_to_come_back(self) -> None:
        spec = dataclasses.replace(SPEC, max_queued=2)
        for _ in range(2):
            self.enter(spec)
            Job.objects.create(model=MODEL, inputs="x")
        with self.assertRaises(errors.QueueFull) as refused:
            self.enter(spec)
        self.assertGreater(refused.exception.retry_after_s or 0, 0)
        Job.objects.update(status=Status.SUCCEEDED)
        self.enter(spec)

    def enter(self, spec: ModelSpec) -> None:
        with admission.reserve_places(Terms(spec=spec), [Job().pk]):
            pass

    def test_a_known_key_is_answered_also_when_no_worker_serves(self) -> None:
        job = jobs.submit(Submission(spec=SPEC, inputs="x", idempotency_key="k"))
        self.assertEqual(jobs.run(Submission(spec=SPEC, inputs="x", idempotency_key="k"), timeout_s=0).pk, job.pk)

    @override_settings(WEBHOOK_HOSTS=["example.com"])
    def test_a_blocking_call_checks_and_registers_its_webhook(self) -> None:
        self.serve()
        with self.assertRaisesRegex(errors.InvalidInput, "not among those"):
            jobs.run(Submission(spec=SPEC, inputs="x", webhook="https://example.org/hook"), timeout_s=0)
        job = jobs.run(Submission(spec=SPEC, inputs="x", webhook="https://example.com/hook"), timeout_s=0)
        self.assertEqual(Webhook.objects.get().job_id, job.pk)

    def test_a_blocking_call_with_no_worker_is_refused_and_stores_nothing(self) -> None:
        with self.assertRaises(errors.NoWorker):
            jobs.run(Submission(spec=SPEC, inputs="x"), timeout_s=1)
        self.assertEqual(Job.objects.count(), 0)

    def test_who_is_refused_reads_why_nobody_serves_the_model_and_nothing_that_an_engine_said(self) -> None:
        cases: tuple[tuple[dict[str, Any], str], ...] = (
            ({"replicas": {"0": {"models": {MODEL: LOADING}}}}, "Its worker is loading it."),
            ({"replicas": {"0": {"models": {MODEL: "no secret.bin"}}}}, "Its worker cannot run it."),
            ({"replicas": {"0": {"models": {MODEL: "ready"}}}, "is_to_rest": True}, "Its worker is drained."),
            ({"state": WorkerState.GONE}, "No living worker has it."),
        )
        worker = self.serve()
        for values, why in cases:
            with self.subTest(why):
                Worker.objects.filter(pk=worker.pk).update(model_names=[], **values)
                with self.assertRaises(errors.NoWorker) as refused:
                    jobs.run(Submission(spec=SPEC, inputs="x"), timeout_s=1)
                self.assertIn(f"No worker serves {MODEL!r} now. {why}", refused.exception.message)
                self.assertNotIn("secret", refused.exception.message)
                self.assertEqual("secret" in refused.exception.raised, "cannot run" in why)

    def test_a_worker_that_is_silent_for_too_long_does_not_count(self) -> None:
        self.serve()
        long_ago = timezone.now() - datetime.timedelta(minutes=1)  # heartbeats are compared with the database's clock
        Worker.objects.update(heartbeat_at=long_ago)
        with self.assertRaises(errors.NoWorker):
            jobs.run(Submission(spec=SPEC, inputs="x"), timeout_s=1)

    def test_a_blocking_call_returns_the_finished_job(self) -> None:
        self.serve()
        answers: list[Job] = []
        thread = threading.Thread(
            target=lambda: answers.append(jobs.run(Submission(spec=SPEC, inputs="x"), timeout_s=PATIENCE_S))
        )
        thread.start()
        eventually(Job.objects.exists)
        Job.objects.update(status=Status.SUCCEEDED, output=[1.0])

        def notify() -> list[Job]:
            notices.publish_finished_jobs([Job.objects.get().pk])
            return answers

        eventually(notify)
        thread.join()
        self.assertEqual(answers[0].output, [1.0])

    def test_a_blocking_call_that_times_out_returns_the_job_as_it_is(self) -> None:
        self.serve()
        job = jobs.run(Submission(spec=SPEC, inputs="x"), timeout_s=0.05)
        self.assertEqual((job.status, Job.objects.get().pk), (Status.QUEUED, job.pk))

    def test_waiting_for_a_finished_job_returns_at_once(self) -> None:
        job = Job.objects.create(model=MODEL, inputs="x", status=Status.FAILED)
        self.assertEqual(jobs.wait(job.pk, timeout_s=60).status, Status.FAILED)

    def test_an_unknown_job_and_another_owners_job_are_the_same(self) -> None:
        owner, other = (get_user_model().objects.create(username=name) for name in ("a", "b"))
        job = Job.objects.create(model=MODEL, inputs="x", owner=owner)
        self.assertEqual(get_visible_job(Principal(user=owner), str(job.pk)), job)
        for job_id, who in ((job.pk, other), (uuid4(), owner)):
            with self.assertRaisesRegex(errors.JobNotFound, f"There is no job {job_id}"):
                get_visible_job(Principal(user=who), str(job_id))

    def test_cancelling_is_idempotent_and_leaves_finished_jobs_alone(self) -> None:
        job = jobs.submit(Submission(spec=SPEC, inputs="x"))
        self.assertEqual(jobs.cancel(job.pk).status, Status.CANCELLED)
        self.assertEqual(jobs.cancel(job.pk).status, Status.CANCELLED)
        done = Job.objects.create(model=MODEL, inputs="x", status=Status.SUCCEEDED)
        self.assertEqual(jobs.cancel(done.pk).status, Status.SUCCEEDED)

    def test_a_retry_is_a_new_job_with_the_same_inputs(self) -> None:
        job = Job.objects.create(model=MODEL, inputs="x", status=Status.FAILED, priority=Priority.LOW)
        again = jobs.submit(jobs.make_resubmission(jobs.fetch(job.pk)))
        self.assertNotEqual(again.pk, job.pk)
        self.assertEqual((again.inputs, again.priority, again.status), ("x", Priority.LOW, Status.QUEUED))
        job.refresh_from_db()
        self.assertEqual(job.status, Status.FAILED)
