from __future__ import annotations

import pickle
from dataclasses import replace
from unittest import TestCase
from uuid import UUID, uuid4

from inference.fields import uuids
from inference.worker.calls import BatchCall, BatchReport


class UuidsTests(TestCase):
    def test_an_id_is_the_one_that_was_passed_on(self) -> None:
        for known in (uuid4(), UUID(int=0), UUID(int=2**128 - 1)):
            for made in (
                uuids.make_uuid_from_hex(known.hex),
                uuids.make_uuid_from_hex(known.hex.encode()),
            ):
                self.assertEqual((made, str(made), hash(made)), (known, str(known), hash(known)))
                self.assertEqual(pickle.loads(pickle.dumps(made)), known)

    def test_what_has_not_32_digits_is_refused(self) -> None:
        for digits in ("", "x" * 32, "a" * 31, "a" * 33, "-" + "a" * 31):
            with self.assertRaises(ValueError):
                uuids.make_uuid_from_hex(digits)

    def test_calls_and_reports_cross_the_pipe_whole(self) -> None:
        ids = tuple(uuid4() for _ in range(3))
        report = BatchReport(
            errors=dict(zip(ids, ("", "timed_out", ""), strict=True)), engine_s=0.5, left=frozenset(ids[:1])
        )
        messages = (
            BatchCall(
                batch=uuid4(), model="m", digest="d", job_ids=ids, shares=(2, 1), time_limit_s=60, verdict="lost"
            ),
            BatchCall(batch=uuid4(), model="m", digest="d", job_ids=(), time_limit_s=60, waiting=ids[:2]),
            BatchReport(errors={}),
            replace(report, each=(report, report)),
        )
        for each in messages:
            self.assertEqual(pickle.loads(pickle.dumps(each)), each)
