"""A host whose clock is wrong neither expires jobs nor has them sent again."""

import datetime
import time
from unittest import skipUnless
from unittest.mock import patch
from uuid import UUID

import uuid_utils.compat
from django.db import connection
from django.test import TransactionTestCase
from django.utils import timezone

from inference import clock, process_resources
from inference.catalog.lookup import get_spec
from inference.fields.ids import make_first_id, make_row_id
from inference.models import Act, Job, Webhook, Worker
from inference.submission import jobs
from inference.submission.submissions import Submission

AHEAD_S = 3600.0  # by far more than this test takes


class ClockTests(TransactionTestCase):
    def test_a_job_s_times_are_those_of_the_database(self) -> None:
        process_resources.current.queue_counters.clear()
        before = timezone.now()  # of which the database's clock is the other side
        with patch.object(clock, "_off_s", -AHEAD_S):  # this host's clock is ahead
            submitted = jobs.submit(Submission(spec=get_spec("embeddings"), inputs="x", expires_in_s=60))
        job = Job.objects.get(pk=submitted.pk)
        late = before - datetime.timedelta(seconds=AHEAD_S / 2)
        assert job.published_at
        assert job.expires_at
        for moment in (job.created_at, job.published_at, job.expires_at - datetime.timedelta(seconds=60)):
            self.assertLess(moment, late)
        self.assertLess(job.pk, make_first_id(late))

    def test_rows_begin_with_the_database_s_time(self) -> None:
        """A notice of a host that is ahead would be due as much later, and a worker of one seem to live for longer."""
        late = timezone.now() - datetime.timedelta(seconds=AHEAD_S / 2)
        with patch.object(clock, "_off_s", -AHEAD_S):
            webhook, worker, act = Webhook(), Worker(), Act()
        for moment in (webhook.due_at, worker.heartbeat_at, worker.started_at, act.created_at):
            self.assertLess(moment, late)

    @skipUnless(connection.vendor == "postgresql", "the clock of a file is the host's")
    def test_how_far_the_host_is_off_is_measured(self) -> None:
        real = time.time
        with patch.multiple(clock, _off_s=0.0, _measured_at=float("-inf"), _begun_s=0.0):
            with patch.object(time, "time", lambda: real() + AHEAD_S):
                clock.measure_offset(connection)
            self.assertAlmostEqual(clock.get_offset_s(), -AHEAD_S, delta=AHEAD_S / 2)

    @skipUnless(connection.vendor == "postgresql", "the clock of a file is the host's")
    def test_a_clock_that_is_set_while_its_host_runs_is_measured_at_once(self) -> None:
        real = time.time
        with patch.multiple(clock, _off_s=0.0, _measured_at=float("-inf"), _begun_s=0.0):
            clock.measure_offset(connection)
            with patch.object(time, "time", lambda: real() + AHEAD_S):
                clock.measure_offset(connection)
            self.assertAlmostEqual(clock.get_offset_s(), -AHEAD_S, delta=AHEAD_S / 2)

    @skipUnless(connection.vendor == "postgresql", "the clock of a file is the host's")
    def test_the_first_job_after_the_host_s_clock_was_set_has_the_database_s_time(self) -> None:
        real = time.time
        with patch.multiple(clock, _off_s=0.0, _measured_at=float("-inf"), _begun_s=0.0):
            clock.measure_offset(connection)
            for set_s in (AHEAD_S, -AHEAD_S):
                with patch.object(time, "time", lambda set_s=set_s: real() + set_s):
                    self.assertAlmostEqual(clock.get_database_time().timestamp(), real(), delta=AHEAD_S / 2)

    def test_an_id_goes_back_with_the_clock(self) -> None:
        """uuid7 stays at the latest time that it has seen."""
        now_ms, ahead_ms = int(clock.estimate_now_s() * 1000), int(AHEAD_S * 1000)
        stuck = [UUID(int=(now_ms + ahead_ms << 80) | (7 << 76) | (2 << 62) | count) for count in range(3)]
        with patch.object(uuid_utils.compat, "uuid7", side_effect=stuck):
            made = [make_row_id() for _ in stuck]
        self.assertEqual((made, len({*made})), (sorted(made), 3))
        late = datetime.datetime.fromtimestamp(now_ms / 1000 + AHEAD_S / 2, datetime.UTC)
        self.assertLess(made[-1], make_first_id(late))

    def test_ids_keep_their_order_where_a_thread_pauses_as_it_makes_one(self) -> None:
        now_ms = int(clock.estimate_now_s() * 1000)
        given = [UUID(int=(now_ms + ms << 80) | (7 << 76) | (2 << 62) | count) for ms, count in ((0, 9), (200, 1))]
        with (
            patch.object(clock, "_off_s", 0.0),
            patch.object(clock, "estimate_now_s", return_value=(now_ms + 200) / 1000),
            patch.object(uuid_utils.compat, "uuid7", side_effect=given),
        ):
            self.assertEqual([make_row_id() for _ in given], given)

    def test_clocks_that_agree_are_left_alone(self) -> None:
        with patch.multiple(clock, _off_s=0.0, _measured_at=float("-inf"), _begun_s=0.0):
            clock.measure_offset(connection)
            self.assertEqual(clock.get_offset_s(), 0.0)
