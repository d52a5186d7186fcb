"""One device's failure is that device's alone: two replicas, each on a device of its own."""

import time
from unittest.mock import patch
from uuid import uuid4

from inference import errors
from inference.worker.calls import READY, LoadReport
from inference.worker.replicas import device_health
from inference.worker.replicas.devices import Plan
from inference.worker.replicas.registry import ReplicaRegistry
from inference.worker.replicas.replica import ReplicaState
from inference.worker.scheduling.isolation import MOST_ON_ONE_DEVICE
from tests.inference.worker.test_dispatcher import CATALOG, PID, DispatcherCase, Pool, make_dispatcher, stop_clock

BAD, GOOD = "cuda:0", "cuda:1"
FAILED = errors.DeviceFailed("illegal memory access")


class TrustTests(DispatcherCase):
    def setUp(self) -> None:
        stop_clock(self)
        self.pool = Pool(replicas=2)
        plan = Plan(worker=uuid4(), devices=(BAD, GOOD), replicas=2, threads=1)
        self.replicas = ReplicaRegistry(plan, CATALOG)
        for index in (0, 1):
            self.start(index)
        self.dispatcher = make_dispatcher(self.replicas, self.pool)
        self.clock = 0.0

    def start(self, index: int) -> None:
        self.replicas.note_start(index, PID + index)
        states = {spec.digest: READY for spec in CATALOG.values()}
        self.replicas.note_loaded_models(LoadReport(pid=PID + index, models=states))

    def runs_on(self, index: int) -> None:
        """The other one is busy."""
        self.pool.dead = [PID + 1 - index]
        self.now()
        self.dispatcher.send_next_calls()
        self.assertEqual(self.last.pid, PID + index)

    def fails_on(self, index: int) -> None:
        self.runs_on(index)
        self.pool.dead = [PID, PID + 1]  # so that what follows waits for its turn
        self.pool.lose(self.last, FAILED)

    def fails_on_bad(self) -> None:
        self.fails_on(0)

    def ends_on_good(self, error: str = "") -> None:
        while len(self.dispatcher.backlog):
            self.runs_on(1)
            self.pool.dead = [PID, PID + 1]
            self.pool.finish(self.last, dict.fromkeys(self.last.batch.job_ids, error))

    def is_withdrawn(self, device: str) -> bool:
        return self.replicas.device_health.compute_withdrawn_s(device) > 0

    def test_a_device_that_fails_with_what_others_compute_is_withdrawn_and_the_others_serve(self) -> None:
        for faults in range(device_health.FAULTS):
            self.assertFalse(self.is_withdrawn(BAD), faults)
            for _ in range(3):
                self.add()
            self.fails_on_bad()
            self.ends_on_good()
        self.assertTrue(self.is_withdrawn(BAD))
        self.assertEqual([self.replicas.can_child_take_call(pid) for pid in (PID, PID + 1)], [False, True])
        self.assertEqual((self.replicas.unpaused_models, self.replicas.may_start(0)), ({"a", "b"}, False))
        self.assertTrue(self.dispatcher.make_snapshot().replicas["0"].withdrawn_s)

    def test_so_is_one_that_fails_with_what_others_compute_to_an_error_of_the_job(self) -> None:
        for error, withdrawn in (("invalid_input", True), ("engine_error", True), ("crashed", False)):
            self.setUp()
            for _ in range(device_health.FAULTS):
                self.add()
                self.fails_on_bad()
                self.ends_on_good(error)
            self.assertEqual(self.is_withdrawn(BAD), withdrawn, error)

    def test_it_is_tried_again_and_the_pauses_grow(self) -> None:
        pauses = []
        for _ in range(3):
            for _ in range(device_health.FAULTS):
                if not self.is_withdrawn(BAD):
                    self.add()
                    self.fails_on_bad()
                    self.ends_on_good()
            pauses.append(self.replicas.device_health.compute_withdrawn_s(BAD))
            later = time.monotonic() + 2 * pauses[-1]  # the clock stands
            with patch("inference.worker.replicas.device_health.time.monotonic", return_value=later):
                self.assertTrue(self.replicas.may_start(0))
            self.replicas.device_health._records[BAD].until = 0.0  # noqa: SLF001 - as if it were over
        self.assertEqual(pauses, sorted(pauses))
        self.assertLess(pauses[0] * 2, pauses[2])

    def test_successes_of_other_devices_do_not_make_it_good_but_its_own_do(self) -> None:
        for computes, withdrawn in ((GOOD, True), (BAD, False)):
            self.setUp()
            self.add()
            self.fails_on_bad()
            self.ends_on_good()
            for _ in range(device_health.TRUSTED_AFTER):
                self.replicas.device_health.note_success(computes)
            self.add()
            self.fails_on_bad()
            self.ends_on_good()
            self.assertEqual(self.is_withdrawn(BAD), withdrawn, computes)

    def test_only_batches_that_it_computed_make_it_good(self) -> None:
        for engine_s, counted in ((0.0, False), (0.1, True)):
            self.add()
            self.runs_on(0)
            with patch.object(self.replicas.device_health, "note_success") as computed:
                self.pool.finish(self.last, engine_s=engine_s)
            self.assertEqual(computed.called, counted, engine_s)

    def test_a_job_that_breaks_every_device_withdraws_none(self) -> None:
        for _ in range(device_health.FAULTS + 1):
            _, request = self.add()
            self.fails_on(0)
            self.fails_on(1)
            self.runs_on(1)
            self.assertEqual(self.last.batch.verdict, "device_failed")
            self.pool.dead = [PID, PID + 1]
            self.pool.finish(self.last, dict.fromkeys(self.last.batch.job_ids, "device_failed"))
            self.assertEqual(request.events[-1], ("finished", "device_failed"))
        self.assertFalse(self.is_withdrawn(BAD) or self.is_withdrawn(GOOD))

    def test_a_job_is_not_condemned_by_one_device_alone_where_there_is_another(self) -> None:
        self.add()
        for _ in range(MOST_ON_ONE_DEVICE - 1):
            self.fails_on_bad()
        self.fails_on(1)
        self.assertEqual(self.last.batch.verdict, "")
        self.runs_on(1)
        self.assertEqual(self.last.batch.verdict, "device_failed")

    def test_a_failure_counts_though_its_process_is_gone_as_it_is_read(self) -> None:
        _, request = self.add()
        self.runs_on(0)
        self.replicas.note_end(0)
        self.pool.dead = [PID, PID + 1]
        self.pool.lose(self.last, FAILED)
        self.ends_on_good()
        self.assertEqual(request.events, [("finished", "")])
        self.assertEqual(self.replicas.device_health._records[BAD].faults, 1)  # noqa: SLF001

    def fail_until_withdrawn(self) -> None:
        for _ in range(device_health.FAULTS):
            self.add()
            self.fails_on_bad()
            self.ends_on_good()

    def test_one_is_not_withdrawn_where_the_other_cannot_be_loaded(self) -> None:
        self.replicas.note_end(1)
        self.replicas.note_start(1, PID + 2)
        self.replicas.note_loaded_models(
            LoadReport(pid=PID + 2, models={spec.digest: "it is lost" for spec in CATALOG.values()})
        )
        for _ in range(device_health.FAULTS):
            self.add()
            self.fails_on_bad()
            self.runs_on(0)
            self.pool.finish(self.last)
        self.assertFalse(self.is_withdrawn(BAD))
        self.assertTrue(self.replicas.can_child_take_call(PID))

    def test_one_that_was_withdrawn_is_given_work_again_once_the_other_is_lost_and_not_while_it_restarts(self) -> None:
        self.fail_until_withdrawn()
        self.replicas.note_end(1)
        self.assertFalse(self.replicas.may_start(0))
        self.replicas.note_start(1, PID + 2)
        self.replicas.note_end(1)  # while it loads
        self.assertTrue(self.replicas.may_start(0))
        self.assertTrue(self.replicas.can_child_take_call(PID))

    def test_one_is_withdrawn_where_another_has_what_it_runs_and_not_all_models(self) -> None:
        self.replicas.note_end(0)
        self.replicas.note_start(0, PID)
        states = {spec.digest: READY if name == "a" else "no weights" for name, spec in CATALOG.items()}
        self.replicas.note_loaded_models(LoadReport(pid=PID, models=states))
        self.replicas.note_end(1)
        self.replicas.note_start(1, PID + 1)
        self.replicas.note_loaded_models(LoadReport(pid=PID + 1, models=states))
        self.replicas.replicas.append(ReplicaState(GOOD))
        self.replicas.note_start(2, PID + 2)
        states = {spec.digest: READY if name == "b" else "no weights" for name, spec in CATALOG.items()}
        self.replicas.note_loaded_models(LoadReport(pid=PID + 2, models=states))
        self.fail_until_withdrawn()
        self.assertTrue(self.is_withdrawn(BAD))

    def test_the_only_device_is_never_withdrawn(self) -> None:
        only = device_health.DeviceHealth([BAD], lambda *_: True)
        for _ in range(9):
            only.note_success_elsewhere(device_health.Incident(device=BAD, jobs=1))
        self.assertEqual(only.compute_withdrawn_s(BAD), 0)
