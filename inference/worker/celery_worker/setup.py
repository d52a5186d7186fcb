"""The worker's part of Celery: its options `--models` and `--devices`, its start and stop, and the refused options.

It is imported with the Celery application, before Django is set up: the handlers import the modules that need models.
"""

import gc
import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import click
from celery import Celery, bootsteps, concurrency, platforms, signals
from django.conf import settings
from django.db import DatabaseError, InterfaceError

from inference.broker.messages import TASK
from inference.catalog import lookup, specs
from inference.catalog.specs import Catalog
from inference.telemetry import logs
from inference.worker.celery_worker.task_pool import TaskPool

if TYPE_CHECKING:
    from inference.worker.replicas.served_models import ModelSelection
    from inference.worker.service import WorkerService

logger = logging.getLogger(__name__)

MODELS_HELP = "The models of this worker, with commas: embeddings,sentiment. Without it: all of models.toml."
DEVICES_HELP = """\
Devices of the replicas: auto (every GPU, else the CPU), cpu, or a list such as cuda:0,cuda:1. Child i of -c is bound
to device i mod n; cuda:0+cuda:1 is one device, of two GPUs, for a model that fits none. Without -c: up to four
replicas a GPU, by its memory and the models' sizes, or one a CPU core."""


class ReplicaStep(bootsteps.StartStopStep):
    """The bootstep that gives the pool its processes, and has the models file read at SIGHUP.

    Celery would restart the whole worker at SIGHUP.
    """

    requires = ("celery.worker.components:Pool",)

    def include_if(self, parent: Any) -> bool:
        return find_service(parent) is not None

    def create(self, parent: Any) -> None:
        parent.pool.take_replicas(parent.service.pool)

    def start(self, parent: Any) -> None:
        # A new thread sets the event, since the main thread may hold the event's lock when the signal arrives.
        look = lookup.start_follower().look_at_file_soon
        signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=look).start())


def install_options_and_steps(app: Celery) -> None:
    app.steps["worker"].add(ReplicaStep)
    app.steps["consumer"].add("inference.worker.celery_worker.consumer:BatchingStep")
    app.user_options["worker"].add(click.Option(("--models",), help=MODELS_HELP))
    app.user_options["worker"].add(click.Option(("--devices",), default="auto", show_default=True, help=DEVICES_HELP))
    signals.setup_logging.connect(configure_logging, weak=False)
    signals.worker_init.connect(prepare_worker, weak=False)
    signals.worker_ready.connect(collect_less_garbage, weak=False)
    signals.worker_shutdown.connect(stop_service, weak=False)


def prepare_worker(sender: Any, **kwargs: Any) -> None:
    """Prepare the worker before its pool is created, or exit with an error message.

    Celery would only log an exception that this raised, and continue with half a worker.
    """
    os.environ.setdefault("DATABASE_ANSWER_S", "20")  # of the child processes too, which inherit it
    try:
        _prepare(sender)
    except (specs.CatalogError, ValueError) as error:
        sys.exit(f"Error: {error}")
    except (DatabaseError, InterfaceError) as error:
        sys.exit(f"Error: the database does not answer: {error}. Is it there, and has `manage.py migrate` been run?")
    except Exception as error:
        logger.exception("the worker does not start")
        sys.exit(f"Error: the worker does not start: {error!r}; where it failed is logged above.")


def _prepare(worker: Any) -> None:
    """Make the service of this worker's models, and start it.

    Raises `ValueError` if an option cannot be combined with models.
    """
    from inference.worker.celery_worker import command_overrides
    from inference.worker.service import WorkerOptions, prepare_worker_service

    models = lookup.get_catalog()
    is_ours = concurrency.get_implementation(worker.pool_cls) is TaskPool
    if not _list_consumed_models(worker, models):  # -Q names other queues: the worker runs other tasks
        worker.pool_cls = "prefork" if is_ours else worker.pool_cls
        return
    if not is_ours:
        raise ValueError(
            "models run in the pool inference.worker.celery_worker.task_pool:TaskPool; leave out -P/--pool, and have"
            " CELERY_WORKER_POOL name it"
        )
    selection = _select_models(worker, models)
    refuse_what_breaks_batching(worker)
    options = WorkerOptions(
        node=worker.hostname,
        devices=worker.options.get("devices") or "auto",
        concurrency=worker.options.get("concurrency") or worker.app.conf.worker_concurrency,
        most_calls=worker.max_tasks_per_child,
        most_kib=worker.max_memory_per_child,
    )
    worker.service = service = prepare_worker_service(models, selection, options)
    worker.concurrency = service.replicas.plan.replicas
    signals.worker_shutting_down.connect(lambda **_: service.heartbeat.note_stop(), weak=False)
    command_overrides.override_commands(service.housekeeping)
    service.start()


def _list_consumed_models(worker: Any, models: Catalog) -> list[str]:
    return [name for name, spec in models.items() if spec.queue in worker.app.amqp.queues.consume_from]


def _select_models(worker: Any, models: Catalog) -> "ModelSelection":
    """Return the models that the options select, and have no queue consumed before a replica can run its model.

    Raises `ValueError` if options select queues in the place of models, or a model that there is not.
    """
    from inference.worker.replicas.served_models import parse_selection

    queues, consumed = worker.app.amqp.queues, _list_consumed_models(worker, models)
    if len(consumed) < len(models):
        raise ValueError(f"-Q and -X do not choose models; use --models {','.join(consumed)} instead")
    selection = parse_selection(models, worker.options.get("models"))
    others = queues.consume_from.keys() - {spec.queue for spec in models.values()}
    if others:
        names = ",".join(sorted(others))
        logger.warning("a worker with models runs jobs only: start another one with `celery worker -Q %s`", names)
    queues.deselect(list(queues.consume_from))
    return selection


def find_service(worker: Any) -> "WorkerService | None":
    """Return the service of a Celery worker, or None if the worker has no models."""
    return getattr(worker, "service", None)


def collect_less_garbage(**kwargs: Any) -> None:
    """Run the garbage collector of the main process less often.

    Jobs make no reference cycles. With ten thousand waiting jobs, repeated collections would take a tenth of the
    process's CPU time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def refuse_what_breaks_batching(worker: Any) -> None:
    """Check the worker's options. Raises `ValueError`, which names the remedy, for one that breaks batching."""
    conf = worker.app.conf
    if worker.options.get("autoscale"):
        raise ValueError("--autoscale changes the number of replicas under loaded models; use -c N instead")
    if conf.worker_disable_prefetch:
        raise ValueError("--disable-prefetch leaves nothing to batch; leave it out")
    if conf.worker_enable_prefetch_count_reduction:
        raise ValueError("worker_enable_prefetch_count_reduction breaks batching after a reconnect; set it to False")
    if worker.app.tasks[TASK].rate_limit or conf.task_default_rate_limit:
        raise ValueError("a rate limit holds single jobs back from their batch; use max_queued in models.toml")


def configure_logging(loglevel: int | None = None, **kwargs: Any) -> None:
    """Configure Django's logging for the worker and its child processes: one format, one stream."""
    logs.configure(settings.LOGGING)
    if logs.IS_JSON:
        from celery.apps import worker as program

        program.safe_say = _write_json_line  # type: ignore[attr-defined]  # Celery's program has no types
    if loglevel is not None:
        logging.getLogger().setLevel(loglevel)


def _write_json_line(text: str, file: Any = None) -> None:
    """Write Celery's messages about a stop as JSON lines.

    They come from a signal handler: the logging, which takes locks, is bypassed.
    """
    os.write(2, f"{logs.format_json_line(__name__, text)}\n".encode())


def stop_service(sender: Any, **kwargs: Any) -> None:
    if service := find_service(sender):
        service.stop(of_an_error=sender.exitcode == platforms.EX_FAILURE)
