"""The worker's part of Celery: its options `--models` and `--devices`, its start and stop, and the refused options.

It is imported with the Celery application, before Django is set up: the handlers import the modules that need models.
"""

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import click
from celery import Celery, bootsteps, concurrency, platforms, signals
from django.conf import settings
from django.db import DatabaseError, InterfaceError

from inference.broker.messages import TASK
from inference.catalog import lookup, specs, tasks
from inference.catalog.specs import ModelSpec
from inference.telemetry import logs
from inference.worker.processes import process_launcher
from inference.worker.processes.pool import TaskPool
from inference.worker.replicas import devices

logger = logging.getLogger(__name__)

MODELS_HELP = "The models of this worker, with commas: embeddings,sentiment. Without it: all of models.toml."
DEVICES_HELP = """\
Devices of the replicas: auto (every GPU, else the CPU), cpu, or a list such as cuda:0,cuda:1. Child i of -c is bound
to device i mod n; cuda:0+cuda:1 is one device, of two GPUs, for a model that fits none. Without -c: up to four
replicas a GPU, by its memory and the models' sizes, or one a CPU core."""


class HangupStep(bootsteps.StartStopStep):
    """The bootstep that has the models file read at SIGHUP, for which Celery would restart the whole worker."""

    def include_if(self, parent: Any) -> bool:
        return getattr(parent, "replicas", None) is not None

    def start(self, parent: Any) -> None:
        # A new thread sets the event, since the main thread may hold the event's lock when the signal arrives.
        look = lookup.start_follower().look_now
        signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=look).start())


def install_options_and_steps(app: Celery) -> None:
    app.steps["worker"].add(HangupStep)
    app.steps["consumer"].add("inference.worker.consumer:BatchingStep")
    app.user_options["worker"].add(click.Option(("--models",), help=MODELS_HELP))
    app.user_options["worker"].add(click.Option(("--devices",), default="auto", show_default=True, help=DEVICES_HELP))
    signals.setup_logging.connect(configure_logging, weak=False)
    signals.worker_init.connect(prepare_worker, weak=False)
    signals.worker_ready.connect(collect_less_garbage, weak=False)
    signals.worker_shutdown.connect(stop_threads, weak=False)


def prepare_worker(sender: Any, **kwargs: Any) -> None:
    """Prepare the worker before its pool is created, or exit with an error message.

    Celery would only log an exception that this raised, and continue with half a worker.
    """
    os.environ.setdefault("DATABASE_ANSWER_S", "20")  # of the child processes too, which inherit it
    try:
        _plan(sender)
    except (specs.CatalogError, ValueError) as error:
        sys.exit(f"Error: {error}")
    except (DatabaseError, InterfaceError) as error:
        sys.exit(f"Error: the database does not answer: {error}. Is it there, and has `manage.py migrate` been run?")
    except Exception as error:
        logger.exception("the worker does not start")
        sys.exit(f"Error: the worker does not start: {error!r}; where it failed is logged above.")


def _plan(worker: Any) -> None:
    """Plan the replicas of this worker's models, register the worker, and start its threads.

    Raises `ValueError` if an option cannot be combined with models.
    """
    from inference.fields.ids import new_job_id
    from inference.worker import control
    from inference.worker.maintenance.heartbeat import Heartbeat
    from inference.worker.maintenance.housekeeping import Housekeeping
    from inference.worker.replicas.registry import ReplicaRegistry
    from inference.worker.replicas.served_models import ServedModels, parse_selection
    from inference.worker.scheduling.lazy_models import LazyModels
    from inference.worker.scheduling.unfetched_jobs import UnfetchedJobs

    queues, models = worker.app.amqp.queues, lookup.get_catalog()
    consumed = [name for name, spec in models.items() if spec.queue in queues.consume_from]
    is_ours = concurrency.get_implementation(worker.pool_cls) is TaskPool
    if not consumed:  # -Q names other queues: the worker runs other tasks, in Celery's own pool
        worker.pool_cls = "prefork" if is_ours else worker.pool_cls
        return
    if not is_ours:
        raise ValueError(
            "models run in the pool inference.worker.processes.pool:TaskPool; leave out -P/--pool, and have"
            " CELERY_WORKER_POOL name it"
        )
    if len(consumed) < len(models):
        raise ValueError(f"-Q and -X do not choose models; use --models {','.join(consumed)} instead")
    selection = parse_selection(models, worker.options.get("models"))
    others = queues.consume_from.keys() - {spec.queue for spec in models.values()}
    if others:
        names = ",".join(sorted(others))
        logger.warning("a worker with models runs jobs only: start another one with `celery worker -Q %s`", names)
    queues.deselect(list(queues.consume_from))  # a model's queue is consumed once a replica can run the model
    refuse_what_breaks_batching(worker)
    choice = devices.choose_devices(worker.options.get("devices") or "auto")
    selection = replace(selection, on_gpu=not choice.is_cpu)
    plan = devices.make_plan(
        worker=new_job_id(),
        choice=choice,
        **_loads(selection.select_entries(models).values()),
        concurrency=worker.options.get("concurrency") or worker.app.conf.worker_concurrency,
    )
    plan = replace(plan, ahead=settings.WORK_AHEAD)
    logs.bind_to_process(worker=plan.worker)
    devices.set_up_libraries(plan.threads, is_cpu=choice.is_cpu)
    process_launcher.start_fork_server(selection.select_entries(models).values())
    worker.concurrency = plan.replicas
    worker.replicas = TaskPool.registry = ReplicaRegistry(plan, selection.select_entries(models))
    worker.served = ServedModels(worker.replicas, selection)
    worker.lazy = LazyModels(worker.replicas)
    worker.lazy.demand.start()
    worker.unfetched = UnfetchedJobs(plan.worker)
    worker.unfetched.start()
    lookup.start_follower()
    worker.heartbeat = Heartbeat(plan, worker.hostname)
    worker.heartbeat.register_worker()
    signals.worker_shutting_down.connect(worker.heartbeat.announce_stop)
    worker.heartbeat.start()
    worker.housekeeping = Housekeeping(worker.heartbeat, worker.replicas)
    worker.housekeeping.chores.append(worker.served.update_jobless_models)
    control.install_commands(worker.housekeeping)
    worker.housekeeping.start()


def collect_less_garbage(**kwargs: Any) -> None:
    """Run the garbage collector of the main process less often.

    Jobs make no reference cycles. With ten thousand waiting jobs, repeated collections would take a tenth of the
    process's CPU time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def _loads(specs: Collection[ModelSpec]) -> dict[str, Any]:
    """Return the arguments of `make_plan` that decide how many replicas share a GPU.

    At least the largest of the lazy models must fit. A model that generates fills a GPU with one batch, which several
    replicas would only divide.
    """
    from inference.engines.artifacts import memory

    eager = [memory.estimate_weights_memory(spec) for spec in specs if not spec.is_lazy]
    lazy = [memory.estimate_weights_memory(spec) for spec in specs if spec.is_lazy]
    largest = [None if None in lazy else max(size for size in lazy if size is not None)] if lazy else []
    generates = any(tasks.find_task(spec.task).generates for spec in specs)
    return {"sizes": [*eager, *largest], "most": 1 if generates else devices.MOST_REPLICAS}


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

        program.safe_say = _say  # type: ignore[attr-defined]
    if loglevel is not None:
        logging.getLogger().setLevel(loglevel)


def _say(text: str, file: Any = None) -> None:
    """Write Celery's messages about a stop as JSON lines.

    They come from a signal handler: the logging, which takes locks, is bypassed.
    """
    os.write(2, f"{logs.format_line(__name__, text)}\n".encode())


def stop_threads(sender: Any, **kwargs: Any) -> None:
    if heartbeat := getattr(sender, "heartbeat", None):
        sender.housekeeping.stop()
        sender.lazy.demand.stop()
        sender.unfetched.stop()
        heartbeat.stop(of_an_error=sender.exitcode == platforms.EX_FAILURE and not heartbeat.leaving)
