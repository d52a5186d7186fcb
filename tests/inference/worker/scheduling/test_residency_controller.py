"""What a worker has in memory of its lazy models; real processes: tests/e2e/test_lazy.py."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any
from unittest.mock import Mock, patch
from uuid import uuid4

from django.test import SimpleTestCase, TestCase, override_settings

from inference import clock
from inference.catalog.specs import ModelSpec
from inference.models import Job, Status, Worker, WorkerState
from inference.residency_policy.state import MIB, Waiting
from inference.worker.calls import READY, LoadReport
from inference.worker.maintenance import row_values
from inference.worker.replicas.devices import Plan
from inference.worker.replicas.registry import ReplicaRegistry
from inference.worker.replicas.replica import ReplicaState
from inference.worker.scheduling import residency_controller
from inference.worker.scheduling.backlog import Backlog
from inference.worker.scheduling.residency_controller import ResidencyController

PID = 11
LAZY = ("a", "b")
CATALOG = {
    "eager": ModelSpec(name="eager", engine="x:Y"),
    **{name: ModelSpec(name=name, engine="x:Y", load="lazy", idle_unload_s=60.0) for name in LAZY},
}


@override_settings(REPLICA_MEMORY_MB=100)
class ResidencyControllerTests(SimpleTestCase):
    def setUp(self) -> None:
        plan = Plan(worker=uuid4(), devices=("cpu",), replicas=1, threads=1)
        self.replicas = ReplicaRegistry(plan, CATALOG)
        self.controller = ResidencyController(self.replicas)
        self.controller.demand.estimates = {spec.load_digest: 50 * MIB for spec in CATALOG.values()}
        self.backlog = Backlog(self.replicas)
        self.now_s = 1000.0
        self.enterContext(patch.object(residency_controller, "time", Mock(monotonic=lambda: self.now_s)))
        self.replicas.note_start(0, PID, self.replicas.make_first_assignment(0))
        self.load("eager")

    def load(self, *names: str, pid: int = PID, **failures: str) -> None:
        """The child has done what it was to do."""
        states = {CATALOG[name].digest: READY for name in names} | {
            CATALOG[name].digest: why for name, why in failures.items()
        }
        memory = {CATALOG[name].digest: (20 if name == "eager" else 60) * MIB for name in names}
        self.replicas.note_loaded_models(LoadReport(pid=pid, models=states, memory=memory, total=1000 * MIB))

    def wait_for(self, *names: str) -> Any:
        self.controller.demand.waiting = {name: Waiting(since_s=self.now_s, priority=2) for name in names}
        self.controller.demand.ours = frozenset(names)
        return self.follow()

    def follow(self) -> Any:
        self.controller.update_residency(self.backlog)
        return self.controller.report

    def goal_names(self) -> set[str]:
        """What the replicas are to have."""
        return {spec.name for spec in self.replicas.goal.values()}

    def test_none_is_loaded_as_a_worker_starts_and_all_are_served(self) -> None:
        self.assertEqual({spec.name for spec in self.replicas.make_first_assignment(0)}, {"eager"})
        report = self.follow()
        self.assertEqual((report.able, report.why_not, self.goal_names()), (set(LAZY), {}, {"eager"}))

    def test_one_is_loaded_for_its_job_within_what_eager_ones_leave(self) -> None:
        self.wait_for("a")
        self.assertEqual((self.controller.residency.room, self.goal_names()), (80 * MIB, {"eager", "a"}))
        self.now_s += 3.0
        self.load("eager", "a")
        report = self.follow()
        self.assertEqual(self.controller.residency.models_in_memory, {"a"})
        self.assertEqual((report.models["a"].memory, round(report.models["a"].load_s, 1)), (60 * MIB, 3.0))

    def test_it_gives_way_to_the_next_and_leaves_before_that_is_loaded(self) -> None:
        self.test_one_is_loaded_for_its_job_within_what_eager_ones_leave()
        self.now_s += 5.0
        self.wait_for("b")
        self.assertEqual(self.goal_names(), {"eager", "b"})
        self.assertEqual(self.replicas.unpaused_models, {"eager"})
        following = self.replicas.begin_next_assignment([PID])
        assert following
        self.assertEqual([spec.name for spec in following[1]], ["eager"])  # first without either

    def test_its_turn_ends_though_the_clock_is_set_back(self) -> None:
        self.test_one_is_loaded_for_its_job_within_what_eager_ones_leave()
        with patch.object(clock, "_off_s", -3600.0):
            self.now_s += 5.0
            self.wait_for("b")
        self.assertEqual(self.goal_names(), {"eager", "b"})

    def test_it_is_unloaded_when_it_is_idle_and_eager_ones_never(self) -> None:
        self.test_one_is_loaded_for_its_job_within_what_eager_ones_leave()
        self.wait_for()
        self.now_s += 61.0
        report = self.follow()
        self.assertEqual((self.goal_names(), report.able), ({"eager"}, set(LAZY)))

    def test_one_that_cannot_be_loaded_is_not_served_for_a_while(self) -> None:
        self.wait_for("a")
        with self.assertLogs("inference.worker.replicas.registry", "ERROR"):
            self.load("eager", a="no weights.")
        report = self.follow()
        self.assertEqual((report.able, report.why_not), ({"b"}, {"a": "no weights."}))
        self.assertEqual((self.goal_names(), self.replicas.unpaused_models), ({"eager"}, {"eager"}))
        self.now_s += 6.0
        self.assertEqual(self.follow().able, set(LAZY))
        self.assertEqual(self.goal_names(), {"eager", "a"})  # its job still waits

    def test_one_that_a_replica_cannot_load_is_tried_by_another_and_stays_there(self) -> None:
        self.replicas.replicas.append(ReplicaState("cpu"))
        self.replicas.note_start(1, PID + 1, self.replicas.make_first_assignment(1))
        self.load("eager", pid=PID + 1)
        self.wait_for("a")
        self.assertEqual(self.next_assignment(), (PID, {"eager", "a"}))
        with self.assertLogs("inference.worker.replicas.registry", "ERROR"):
            self.load("eager", a="no room on its device.")
        self.follow()
        self.assertEqual(self.goal_names(), {"eager"})
        self.now_s += 6.0
        self.follow()
        self.assertEqual(self.next_assignment(), (PID + 1, {"eager", "a"}))
        self.load("eager", "a", pid=PID + 1)
        self.assertEqual(self.next_assignment(), (PID, {"eager", "a"}))
        self.load("eager", a="no room on its device.")
        report = self.follow()
        self.assertEqual((self.controller.residency.models_in_memory, report.why_not), ({"a"}, {}))
        self.assertEqual(
            (self.replicas.find_models_child_lacks(PID), self.replicas.find_models_child_lacks(PID + 1)),
            ({"a"}, frozenset()),
        )

    def next_assignment(self) -> tuple[int, set[str]]:
        """Return the child that is to load something now, and what it is to have then."""
        following = self.replicas.begin_next_assignment([PID, PID + 1])
        assert following
        return following[0], {spec.name for spec in following[1]}

    def test_one_that_ends_its_process_is_loaded_after_a_pause(self) -> None:
        self.wait_for("a")
        self.replicas.begin_next_assignment([PID])
        self.replicas.replicas[0].shared.loading = 1 + [spec.name for spec in self.replicas.goal.values()].index("a")
        self.replicas.note_end(0)
        self.follow()
        assignment = self.replicas.make_first_assignment(0)
        self.assertEqual({spec.name for spec in assignment}, {"eager"})
        self.replicas.note_start(0, PID, assignment)
        with self.assertLogs("inference.worker.replicas.registry", "ERROR"):
            self.load("eager")
        self.assertIn("ended while it loaded", self.follow().why_not["a"])
        self.assertEqual(self.goal_names(), {"eager"})
        self.now_s += 6.0
        self.follow()
        self.assertEqual({spec.name for spec in self.replicas.make_first_assignment(0)}, {"eager", "a"})

    def test_a_model_is_loaded_with_the_next_process_if_its_own_ended(self) -> None:
        self.test_one_is_loaded_for_its_job_within_what_eager_ones_leave()
        self.replicas.note_end(0)
        self.follow()
        self.assertEqual((self.controller.residency.models_in_memory, self.goal_names()), ({"a"}, {"eager", "a"}))

    def test_one_that_becomes_eager_is_loaded_and_one_that_is_gone_is_forgotten(self) -> None:
        eager = ModelSpec(name="a", engine="x:Y")
        self.replicas.set_catalog({"eager": CATALOG["eager"], "a": eager})
        self.follow()
        self.assertEqual((self.goal_names(), self.controller.specs), ({"eager", "a"}, {}))

    def test_another_entry_of_one_in_memory_is_loaded_for_the_next_job(self) -> None:
        self.test_one_is_loaded_for_its_job_within_what_eager_ones_leave()
        self.wait_for()
        after = ModelSpec(name="a", engine="x:Z", load="lazy")
        self.replicas.set_catalog({**CATALOG, "a": after})
        self.follow()
        self.assertEqual((self.controller.residency.models_in_memory, self.goal_names()), (set(), {"eager"}))

    def test_what_changes_or_becomes_lazy_is_served_while_its_size_is_looked_for(self) -> None:
        self.test_one_is_loaded_for_its_job_within_what_eager_ones_leave()
        self.wait_for()
        new = {"eager": replace(CATALOG["eager"], load="lazy"), "a": replace(CATALOG["a"], revision="2")}
        self.controller.demand.estimates = {CATALOG["b"].load_digest: 50 * MIB}
        self.replicas.set_catalog({**CATALOG, **new, "c": ModelSpec(name="c", engine="x:Y", load="lazy")})
        self.assertEqual(self.follow().able, {"eager", *LAZY})
        self.assertEqual(self.state_of("a"), "loading")
        self.assertEqual(self.follow().able, {"eager", *LAZY})
        self.controller.demand.estimates |= {new["eager"].load_digest: 1 * MIB, new["a"].load_digest: 101 * MIB}
        self.assertEqual(self.follow().able, {"eager", "b"})
        self.assertEqual((self.state_of("eager"), self.state_of("a")), ("not loaded", "failed"))

    def test_a_change_without_weights_takes_no_room(self) -> None:
        self.test_one_is_loaded_for_its_job_within_what_eager_ones_leave()
        self.wait_for()
        after = {name: replace(spec, max_batch_size=3) for name, spec in CATALOG.items()}
        self.replicas.set_catalog(after)
        report = self.follow()
        before, both = [CATALOG["eager"], CATALOG["a"]], [after["eager"], after["a"]]
        for loaded in (before + both, both):
            memory = {spec.digest: (20 if spec.name == "eager" else 60) * MIB for spec in loaded}
            states = dict.fromkeys(memory, READY)
            self.replicas.note_loaded_models(LoadReport(pid=PID, models=states, memory=memory, total=1000 * MIB))
            report = self.follow()
            self.assertEqual(
                (report.able, report.why_not, self.controller.residency.models_in_memory), (set(LAZY), {}, {"a"})
            )
            self.assertEqual(self.controller.residency.room, 80 * MIB)

    def state_of(self, name: str) -> str:
        entries = row_values.make_catalog_value(self.replicas, self.controller.report).models
        return next(entry.state for entry in reversed(entries) if entry.name == name)


class DemandPollerTests(TestCase):
    def setUp(self) -> None:
        self.demand = ResidencyController(
            ReplicaRegistry(Plan(worker=uuid4(), devices=("cpu",), replicas=1, threads=1), CATALOG)
        ).demand
        self.demand.models = {name: CATALOG[name] for name in LAZY}

    def job(self, model: str, **values: Any) -> Job:
        return Job.objects.create(model=model, inputs="text", **values)

    def other_worker(self, state: str) -> Worker:
        catalog = {"models": [{"name": "a", "state": state}]}
        return Worker.objects.create(name="other", pid=1, state=WorkerState.READY, catalog=catalog)

    def test_it_sees_the_first_job_of_each_model_in_one_query(self) -> None:
        self.job("a")
        self.job("a", priority=1)
        self.job("b", status=Status.RUNNING)
        with self.assertNumQueries(2):  # and the other workers
            self.demand.poll_demand()
        self.assertEqual((set(self.demand.waiting), self.demand.ours), ({"a"}, {"a"}))
        self.assertEqual(self.demand.waiting["a"].priority, 1)
        self.assertLessEqual(self.demand.waiting["a"].since_s, time.monotonic())

    def test_how_long_a_job_has_waited_follows_no_clock_that_is_set(self) -> None:
        self.job("a")
        self.demand.poll_demand()
        since_s = self.demand.waiting["a"].since_s
        for off_s in (-3600.0, 3600.0):
            with patch.object(clock, "_off_s", off_s):
                self.demand.poll_demand()
            self.assertEqual(self.demand.waiting["a"].since_s, since_s)

    def test_an_idle_service_makes_one_query_and_one_with_all_in_memory_none(self) -> None:
        with self.assertNumQueries(1):
            self.demand.poll_demand()
        self.demand.absent = frozenset()
        with self.assertNumQueries(0):
            self.demand.poll_demand()
        self.demand.models, self.demand.absent = {}, frozenset(LAZY)
        with self.assertNumQueries(0):
            self.demand.poll_demand()

    def test_what_another_worker_has_or_loads_is_left_to_it(self) -> None:
        self.job("a")
        for state in ("loading", "ready"):
            other = self.other_worker(state)
            self.demand.poll_demand()
            self.assertEqual(self.demand.ours, set())
            other.delete()
        self.demand.poll_demand()
        self.assertEqual(self.demand.ours, {"a"})

    def test_it_estimates_each_model_once(self) -> None:
        with patch("inference.engines.artifacts.memory.estimate_weights_memory", return_value=7) as estimate:
            for _ in range(2):
                self.demand.poll_demand()
        self.assertEqual(estimate.call_count, len(LAZY))
