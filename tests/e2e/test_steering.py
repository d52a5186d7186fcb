"""Models are paused and workers drained while jobs come in: nothing is lost, and nothing begins that should not."""

from __future__ import annotations

from uuid import UUID

from inference.fields.ids import make_row_id
from inference.models import Act, ActKind, ActState, Job, PausedModel, Status, Worker, WorkerState
from tests.conditions import eventually
from tests.e2e.case import StackCase
from tests.echo import Fail
from tests.stack import ECHO

TWO = f"{ECHO}\n[other]\nengine = 'tests.echo:EchoEngine'\n"


class SteeringTests(StackCase):
    options = {
        "models": TWO,
        "workers": 2,
        "replicas": 1,
        "environment": {"WORKER_HEARTBEAT_S": "0.2"},
    }

    def are_held_back(self, name: str) -> bool:
        found = [entry for worker in self.stack.workers.all() for entry in worker.catalog.models if entry.name == name]
        return bool(found) and all(entry.held_back for entry in found)

    def queued(self, ids: list[UUID]) -> int:
        return self.stack.jobs.filter(pk__in=ids, status=Status.QUEUED).count()

    def test_jobs_of_a_paused_model_are_accepted_and_wait_until_it_goes_on(self) -> None:
        pause = PausedModel.objects.using(self.stack.alias)
        pause.create(model="echo")
        eventually(lambda: self.are_held_back("echo"), "the workers know")
        waiting = self.stack.submit_together(f"text {number}" for number in range(50))
        self.stack.finished(*[self.stack.submit("b", model="other") for _ in range(5)])
        self.assertEqual(self.queued(waiting), 50)
        self.assertEqual(self.stack.get("/readyz").status, 200)
        late = self.stack.post("/v1/models/echo?timeout=0.1", {"inputs": "c"})
        self.assertEqual(late.status, 504)
        self.assertEqual(self.queued([*waiting, UUID(late.json["job_id"])]), 51)
        pause.all().delete()
        done = self.stack.finished(*waiting)
        self.assertEqual({(job.status, job.recoveries) for job in done}, {(Status.SUCCEEDED, 0)})

    def test_a_drained_worker_ends_what_it_has_begun_and_takes_nothing_until_it_may(self) -> None:
        self.hold()
        busy = self.stack.submit({"text": "a", "fail": Fail.HELD})
        eventually(lambda: self.is_running(busy), "it runs")
        row = self.stack.workers.filter(pk__in=self.stack.jobs.filter(pk=busy).values("worker"))
        drained, other = row.get(), self.stack.workers.exclude(pk__in=row).get()

        def is_(state: WorkerState) -> bool:
            return row.get().state == state

        row.update(is_to_rest=True)
        eventually(lambda: is_(WorkerState.DRAINING), "it ends what it has begun")
        self.assertTrue(self.is_running(busy))
        self.stack.release()
        eventually(lambda: is_(WorkerState.DRAINED), "it is drained")
        self.assertEqual((row.get().model_names, row.get().held), ([], 0))
        self.assertEqual(
            [(job.status, job.attempts, job.recoveries) for job in self.stack.finished(busy)],
            [(Status.SUCCEEDED, 1, 0)],
        )
        done = self.stack.finished(*self.stack.submit_together(f"text {number}" for number in range(30)))
        self.assertEqual({job.worker for job in done}, {other.pk})
        Worker.objects.using(self.stack.alias).filter(pk=other.pk).update(is_to_rest=True)
        eventually(lambda: self.stack.get("/readyz").status == 503, "nobody serves")
        waiting = [self.stack.submit(f"text {number}") for number in range(10)]
        row.update(is_to_rest=False)
        self.assertEqual({job.worker for job in self.stack.finished(*waiting)}, {drained.pk})
        eventually(lambda: is_(WorkerState.READY), "it is ready")
        self.stack.workers.update(is_to_rest=False)

    def test_an_act_on_many_jobs_is_done_by_the_workers(self) -> None:
        ids = self.stack.jobs.bulk_create(Job(model="other", inputs="a", status=Status.CANCELLED) for _ in range(30))
        act = Act.objects.using(self.stack.alias).create(
            kind=ActKind.RETRY, selection={"status": "cancelled", "model": "other"}, newest=make_row_id(), counted=30
        )
        rows = Act.objects.using(self.stack.alias).filter(pk=act.pk)
        eventually(lambda: rows.get().state == ActState.DONE, "the act is over")
        self.assertEqual((rows.get().done, rows.get().left), (30, {}))
        again = self.stack.jobs.filter(model="other", idempotency_key__startswith="-:act:")
        done = self.stack.finished(*again.values_list("pk", flat=True))
        self.assertEqual([job.status for job in done], [Status.SUCCEEDED] * len(ids))
