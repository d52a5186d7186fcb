"""The life of a worker's replicas: a model's queue is consumed only while a replica of the worker can run it."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path
from uuid import UUID

from inference.models import Status, Worker, WorkerState
from tests.conditions import eventually
from tests.e2e.case import ShowingLog
from tests.stack import Stack

MODELS = """
[late]
engine = "tests.faults.engines:GatedEcho"
max_batch_size = 4
time_limit_s = 180

[good]
engine = "tests.faults.engines:GatedEcho"
max_batch_size = 4
time_limit_s = 180
"""
QUICK = {"WORKER_HEARTBEAT_S": "0.5"}
MANY = "".join(MODELS.partition("[good]")[0].replace("late", name) for name in ("early", "b", "c", "d", "e", "late"))


class ReplicaCase(ShowingLog):
    def file(self, name: str) -> Path:
        return self.stack.folder / name

    def row(self, name: str = "worker1") -> Worker:
        return self.stack.workers.get(pid=self.stack.children[name].pid)

    def serves(self, *models: str, name: str = "worker1", ready: int | None = None) -> bool:
        row = self.row(name)
        return set(row.model_names) == set(models) and ready in (None, row.replicas_ready)

    def submit(self, count: int, model: str) -> list[UUID]:
        return self.stack.submit_together([f"text {number}" for number in range(count)], model=model)

    def kill_replica(self) -> None:
        os.kill(self.stack.replica_pids()[0], signal.SIGKILL)

    def assert_untouched(self, ids: list[UUID]) -> None:
        found = self.stack.jobs.filter(pk__in=ids).values_list("status", "attempts", "recoveries")
        self.assertEqual(set(found), {(Status.QUEUED, 0, 0)})

    def assert_succeeded(self, ids: list[UUID], *, attempts: int = 1) -> None:
        jobs = self.stack.finished(*ids)
        self.assertEqual({(job.status, job.error_detail) for job in jobs}, {(Status.SUCCEEDED, "")})
        self.assertLessEqual(max(job.attempts for job in jobs), attempts)


class OwnWorkersCase(ReplicaCase):
    """Each test has workers of its own."""

    models = MODELS

    @classmethod
    def setUpClass(cls) -> None:
        cls.stack = cls.enterClassContext(Stack(models=cls.models, environment=QUICK, workers=0))

    def start(self, *files: str, replicas: int, workers: int = 1, **environment: str) -> None:
        """Start the workers and wait until they have loaded what they can; `files` are in the stack's folder before."""
        self.begin(*files, replicas=replicas, workers=workers, **environment)
        self.stack.ready()

    def begin(self, *files: str, replicas: int, workers: int = 1, **environment: str) -> None:
        self.addCleanup(self.end)
        for file in files:
            self.file(file).touch()
        self.stack.worker_options = ("-c", str(replicas))
        for number in range(workers):
            self.stack.start_worker(f"worker{1 + number}", **environment)

    def end(self) -> None:
        """Leave nothing of them and their jobs."""
        for name in [name for name in self.stack.children if name.startswith("worker")]:
            child = self.stack.children.pop(name)
            child.kill()
            child.pump.join()
        for rows in (self.stack.workers, self.stack.jobs):
            rows.all().delete()
        for state in ("held", "slow", "broken", "deadly"):
            for file in self.stack.folder.glob(f"{state}-*"):
                file.unlink()
        self.stack.log.clear()

    def states(self, model: str) -> list[str]:
        """Return what the replicas say of a model, the one that has it first."""
        models = [replica.models[model] for replica in self.row().replicas.values()]
        return sorted((model.write() for model in models), key="ready".__ne__)


class StartTests(OwnWorkersCase):
    """A child that starts serves each model as it has it."""

    models = MANY

    def test_what_waits_is_answered_between_two_loads(self) -> None:
        for replicas in (1, 2):
            early = self.submit(4, "early")
            self.begin("slow-early", "held-late", replicas=replicas)
            self.assert_succeeded(early)
            row = self.row()
            self.assertEqual((row.state, row.error), (WorkerState.STARTING, ""))
            self.assertIn("late: its worker is loading it.", self.stack.get("/readyz").json["reasons"])
            late = self.submit(4, "late")
            self.file("held-late").unlink()
            self.assert_succeeded(late)
            self.stack.ready()
            self.assertEqual(self.states("late"), replicas * ["ready"])
            self.end()

    def test_a_model_that_ends_the_process_leaves_the_others_served(self) -> None:
        self.begin("deadly-c", replicas=1)
        for model in ("early", "late"):
            self.assert_succeeded(self.submit(4, model), attempts=2)
        self.file("deadly-c").unlink()
        self.assert_succeeded(self.submit(4, "c"))


class ReplicaTests(OwnWorkersCase):
    # A model that cannot be loaded

    def test_jobs_of_a_model_that_cannot_be_loaded_wait_through_restarts_until_it_can(self) -> None:
        self.start("broken-late", replicas=1)
        waiting = self.submit(6, "late")
        for _ in range(2):
            self.assert_succeeded(self.submit(2, "good"))
            self.stack.children["worker1"].stop()
            self.stack.start_worker("worker1")
            self.stack.ready()
        self.assertTrue(self.serves("good"))
        self.assertEqual(self.row().state, WorkerState.DEGRADED)
        self.assert_untouched(waiting)
        eventually(lambda: self.stack.get("/readyz").json["reasons"].count(self.reason("late")) == 1, "it says why")
        self.file("broken-late").unlink()
        self.assert_succeeded(waiting)
        eventually(lambda: self.serves("good", "late"), "the row says so")
        eventually(lambda: self.stack.get("/readyz").status == 200, "it is ready")

    def reason(self, model: str) -> str:
        return f"{model}: could not be loaded on cpu: RuntimeError: no weights yet"

    def test_replicas_load_it_one_after_the_other_and_the_others_go_on_meanwhile(self) -> None:
        self.start("broken-late", replicas=4)
        eventually(lambda: self.serves("good", ready=4), "all serve the other one")
        before = set(self.stack.replica_pids())
        waiting = self.submit(4, "late")
        self.file("broken-late").unlink()
        self.assert_succeeded(waiting)
        eventually(lambda: self.serves("good", "late", ready=4), "all serve both")
        self.assertEqual(set(self.stack.replica_pids()), before)

    def test_a_model_that_ends_the_process_as_it_loads_leaves_the_others_their_replicas(self) -> None:
        self.start("deadly-late", replicas=2)
        waiting = self.submit(4, "late")
        self.assert_succeeded(self.submit(4, "good"), attempts=2)
        why = "late: a process ended while it loaded this model."
        eventually(lambda: why in str(self.stack.get("/readyz").json["reasons"]), "it says why")
        self.assert_untouched(waiting)
        self.file("deadly-late").unlink()
        self.assert_succeeded(waiting)
        eventually(lambda: self.serves("good", "late", ready=2), "all serve both")

    def test_one_sentence_is_logged_for_it_and_the_traceback_of_its_own_code_once(self) -> None:
        self.start("broken-late", replicas=2)

        def counts() -> list[int]:
            lines = [line for line in self.stack.log if "no weights yet" in line]
            return [sum(part in line for line in lines) for part in ("not loaded on cpu", "RuntimeError: ")]

        eventually(lambda: sum(counts()) >= 3, "the log has come through its pipe")
        self.assertEqual(counts(), [1, 2])
        self.assertEqual(sum("Traceback" in line for line in self.stack.log), 1)

    def test_a_child_that_cannot_load_again_runs_the_rest_beside_one_that_can(self) -> None:
        self.start(replicas=2)
        self.file("broken-late").touch()
        self.kill_replica()
        self.log_shows("no weights yet", "it tries")
        self.assert_succeeded(self.submit(20, "late"))
        self.assertEqual(self.states("late"), ["ready", "could not be loaded on cpu: RuntimeError: no weights yet"])
        self.file("broken-late").unlink()
        eventually(lambda: self.states("late") == ["ready", "ready"], "it is back")

    def test_what_loads_slowly_keeps_nothing_else_from_being_served_where_all_replicas_start_again(self) -> None:
        self.start("slow-late", replicas=2)
        self.file("slow-late").rename(self.file("held-late"))
        for pid in self.stack.replica_pids():
            os.kill(pid, signal.SIGKILL)
        self.assert_succeeded(self.submit(20, "good"), attempts=2)
        eventually(lambda: self.serves("good", ready=1), "the row says so")
        waiting = self.submit(4, "late")
        self.file("held-late").unlink()
        self.assert_succeeded(waiting)
        eventually(lambda: self.states("late") == ["ready", "ready"], "both have it again")

    def test_what_no_replica_can_load_again_is_not_served_until_one_can(self) -> None:
        self.start(replicas=1)
        self.file("broken-late").touch()
        self.kill_replica()
        eventually(lambda: self.serves("good", ready=1), "late is withdrawn")
        waiting = self.submit(4, "late")
        self.assertEqual(self.stack.call("a", model="late").json["code"], "no_worker")
        self.assert_succeeded(self.submit(4, "good"))
        self.assert_untouched(waiting)
        self.file("broken-late").unlink()
        self.assert_succeeded(waiting)
        eventually(lambda: self.stack.get("/readyz").status == 200, "all is served")
        self.assertEqual(self.stack.call("a", model="late").status, 200)

    def test_a_worker_that_can_load_nothing_tries_again(self) -> None:
        self.start("broken-late", "broken-good", replicas=1)
        waiting = self.submit(3, "good")
        eventually(lambda: self.row().state == WorkerState.DEGRADED, "it says so")
        self.assertTrue(self.serves())
        self.assert_untouched(waiting)
        self.file("broken-good").unlink()
        self.assert_succeeded(waiting)

    # Workers beside each other

    def test_a_worker_that_loads_takes_nothing_from_one_that_serves(self) -> None:
        self.start(replicas=1)
        self.file("held-late").touch()
        self.stack.start_worker("worker2")
        eventually(lambda: self.stack.workers.filter(pid=self.stack.children["worker2"].pid), "it is there")
        ids = self.submit(60, "good")
        self.assert_succeeded(ids)
        workers = set(self.stack.jobs.filter(pk__in=ids).values_list("worker", flat=True))
        self.assertEqual(workers, {self.row().pk})
        self.assertTrue(self.serves(name="worker2"))
        self.file("held-late").unlink()
        eventually(lambda: self.serves("late", "good", name="worker2"), "it serves, too")

    def test_a_worker_leaves_the_jobs_to_the_others_while_its_only_child_starts_again(self) -> None:
        self.start(replicas=1, workers=2)
        self.file("held-late").touch()
        self.kill_replica()
        eventually(lambda: self.row().replicas_ready == 0, "it loads again")
        self.assert_succeeded(self.submit(60, "good"))
        self.file("held-late").unlink()
        eventually(lambda: self.row().replicas_ready == 1, "it is back")

    def test_what_no_replica_can_run_while_all_start_again_is_not_said_to_be_served(self) -> None:
        self.start(replicas=1)
        for name in ("held-late", "held-good"):
            self.file(name).touch()
        self.kill_replica()
        eventually(lambda: self.row().replicas_ready == 0, "it loads again")
        ready = self.stack.get("/readyz")
        self.assertEqual(ready.status, 503)
        self.assertEqual(ready.json["reasons"], [f"{name}: its worker is loading it." for name in ("late", "good")])
        served = "/v1/models/good"  # what a web process remembers of a second ago, as the call does
        eventually(lambda: self.stack.get(served).json["served"]["workers"] == 0, "it has no worker")
        refused = self.stack.call("a", model="good").json
        self.assertEqual(refused["code"], "no_worker")
        self.assertIn("Its worker is loading it.", refused["detail"])
        self.assertEqual(self.stack.get(served).json["served"]["workers"], 0)
        waiting = self.submit(3, "good")
        for name in ("held-late", "held-good"):
            self.file(name).unlink()
        self.assert_succeeded(waiting)
        eventually(lambda: self.stack.get("/readyz").status == 200, "all is served")

    def test_a_child_that_starts_again_serves_what_its_worker_runs_and_not_what_the_file_says_now(self) -> None:
        self.start(replicas=1)
        self.addCleanup(self.stack.models_file.write_text, MODELS)
        self.stack.models_file.write_text(MODELS.replace("tests.faults.engines:GatedEcho", "not.there:Engine"))
        self.kill_replica()
        self.assert_succeeded(self.submit(3, "late"), attempts=2)

    def test_the_row_of_a_worker_says_whether_it_is_connected_to_the_broker(self) -> None:
        self.start(replicas=1)
        eventually(lambda: self.row().connected, "it is connected")
        self.stack.children["broker"].kill()
        eventually(lambda: not self.row().connected, "it says that it is not")
        why = "good: its worker is not connected to the broker."
        eventually(lambda: why in self.stack.get("/readyz").json["reasons"], "the service says so")
        self.stack.start_broker()
        eventually(lambda: self.stack.get("/readyz").status == 200, "it is ready again")

    def test_a_replica_that_cannot_be_forked_is_tried_again_while_the_other_goes_on(self) -> None:
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        refuses = folder / "refuses"
        shutil.copy(
            Path(__file__).parent.parent / "inference/worker/processes/refused_forks.py", folder / "sitecustomize.py"
        )
        self.start(replicas=2, PYTHONPATH=str(folder), REFUSES_FORKS=str(refuses))
        killed, other = self.stack.replica_pids()
        refuses.touch()
        os.kill(killed, signal.SIGKILL)
        self.log_shows("replica 0 not started", "it is told")
        self.assert_succeeded(self.submit(20, "good"))
        eventually(lambda: self.serves("good", "late", ready=1), "the row says so")
        self.assertEqual(self.stack.replica_pids()[1], other)
        refuses.unlink()
        eventually(lambda: self.serves("good", "late", ready=2), "it is back")
