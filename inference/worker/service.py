"""The service of a worker with models: its parts, how they know each other, and their start and stop."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from django.conf import settings

from inference.catalog import lookup, tasks
from inference.catalog.specs import Catalog, ModelSpec
from inference.engines.artifacts import memory
from inference.fields.ids import make_row_id
from inference.telemetry import logs
from inference.worker.dispatcher import Dispatcher
from inference.worker.maintenance.heartbeat import Heartbeat, WorkerSnapshot
from inference.worker.maintenance.housekeeping import Housekeeping
from inference.worker.processes import process_launcher
from inference.worker.processes.replica_pool import ReplicaPool
from inference.worker.replicas import devices
from inference.worker.replicas.devices import Plan
from inference.worker.replicas.registry import ReplicaRegistry
from inference.worker.replicas.served_models import ModelSelection, ServedModels
from inference.worker.scheduling.backlog import Backlog
from inference.worker.scheduling.residency_controller import ResidencyController
from inference.worker.scheduling.unfetched_job_finder import UnfetchedJobFinder

READ_PER_S = 500e6  # bytes of weights that are loaded within a second, before any load was measured


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The options of `celery worker` that the service takes."""

    node: str
    devices: str
    concurrency: int | None
    most_calls: int | None  # of a child process, after which it is replaced
    most_kib: int | None  # of memory, likewise


class WorkerService:
    """The parts of a worker that serves models, of which Celery's objects know this one."""

    def __init__(
        self,
        plan: Plan,
        catalog: Catalog,
        selection: ModelSelection,
        options: WorkerOptions,
        load_s: Mapping[str, float] | None = None,
    ) -> None:
        """Make the parts. `load_s` are the expected seconds to load each entry, by digest, where they are known."""
        self.replicas = ReplicaRegistry(plan, selection.select_entries(catalog), load_s)
        self.served = ServedModels(self.replicas, selection)
        self.residency = ResidencyController(self.replicas)
        self.unfetched = UnfetchedJobFinder(plan.worker)
        self.heartbeat = Heartbeat(plan, options.node, self.make_snapshot)
        self.housekeeping = Housekeeping(self.heartbeat, self.replicas)
        self.housekeeping.add_chore(self.served.update_jobless_models)
        backlog = Backlog(self.replicas)
        self.pool = ReplicaPool(
            self.replicas,
            child_has_open_batch=backlog.child_has_open_batch,
            load_limit_s=settings.LOAD_LIMIT_S,
            most_calls=options.most_calls,
            most_kib=options.most_kib,
        )
        self.dispatcher = Dispatcher(backlog, self.pool, self.residency, self.unfetched, self.housekeeping)

    def start(self) -> None:
        """Register the worker, and start the threads of its main process."""
        self.residency.demand.start()
        self.unfetched.start()
        lookup.start_follower()
        self.heartbeat.register_worker()
        self.heartbeat.start()
        self.housekeeping.start()

    def stop(self, *, of_an_error: bool) -> None:
        self.housekeeping.stop()
        self.residency.demand.stop()
        self.unfetched.stop()
        self.heartbeat.stop(of_an_error=of_an_error)

    def make_snapshot(self) -> WorkerSnapshot:
        """Return the dispatcher's snapshot, for the heartbeat, which is made before the dispatcher."""
        return self.dispatcher.make_snapshot()

    def follow_changes(self) -> None:
        """Follow what operators want, the models file, the demand for lazy models, and the child processes.

        Runs twice a second in the event loop.
        """
        self.replicas.apply_pauses_and_drain(self.heartbeat.intents)
        self.served.follow_models_file(self.dispatcher.backlog.has_no_jobs_of)
        self.residency.update_residency(self.dispatcher.backlog)
        self.pool.start_and_end_processes()


def prepare_worker_service(catalog: Catalog, selection: ModelSelection, options: WorkerOptions) -> WorkerService:
    """Plan the replicas, prepare this process for them, and return their service.

    Raises `ValueError` for devices that cannot be chosen.
    """
    choice = devices.choose_devices(options.devices)
    selection = replace(selection, on_gpu=not choice.is_cpu)
    specs = selection.select_entries(catalog).values()
    by_digest = {spec.digest: memory.estimate_weights_memory(spec) for spec in specs}
    sizes, most = _choose_sharing(specs, by_digest)
    plan = devices.make_plan(
        worker=make_row_id(), choice=choice, sizes=sizes, most=most, concurrency=options.concurrency
    )
    plan = replace(plan, ahead=settings.WORK_AHEAD)
    logs.bind_process_ids(worker=plan.worker)
    devices.set_up_libraries(plan.threads, is_cpu=choice.is_cpu)
    process_launcher.start_fork_server(specs)
    load_s = {digest: size / READ_PER_S for digest, size in by_digest.items() if size}
    return WorkerService(plan, catalog, selection, options, load_s)


def _choose_sharing(specs: Collection[ModelSpec], by_digest: Mapping[str, int | None]) -> tuple[list[int | None], int]:
    """Return what decides how many replicas share a GPU: the bytes of models that each has, and the most replicas.

    `by_digest` are the bytes of the models. At least the largest of the lazy models must fit. A model that generates
    fills a GPU with one batch, which several replicas would only divide.
    """
    eager = [by_digest[spec.digest] for spec in specs if not spec.is_lazy]
    lazy = [by_digest[spec.digest] for spec in specs if spec.is_lazy]
    largest = [None if None in lazy else max(size for size in lazy if size is not None)] if lazy else []
    generates = any(tasks.find_task(spec.task).generates for spec in specs)
    return [*eager, *largest], 1 if generates else devices.MOST_REPLICAS
