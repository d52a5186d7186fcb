"""`manage.py test`: Django's runner, with a broker of its own on a private socket.

Processes of a parallel run share the server, each in a database of its own.
"""

import atexit
import contextlib
import gc
import logging
import multiprocessing
import os
import shutil
import sys
import tempfile
import unittest
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from django.conf import settings
from django.db import connection
from django.test import runner

from inference.broker import address
from inference.launcher.reaper import Reaper
from tests.embedded_broker import EmbeddedBroker


def use_broker(url: str) -> None:
    """Point this process, and those it starts, at the server."""
    from project.celery import app

    os.environ["REDIS_URL"] = url
    os.environ.pop("BROKER_URL", None)
    settings.REDIS_URL = url
    settings.CELERY_BROKER_URL = address.kombu_url(url)
    app.conf.update(broker_url=settings.CELERY_BROKER_URL)


class TestBroker:
    """Ends with the test run, also when that is killed."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="inference-test-", dir=address.short_root()))
        self.server = EmbeddedBroker(self.folder / "data", self.folder / "broker.sock")

        self.reaper = Reaper()
        atexit.register(self.stop)

    def start(self) -> None:
        self.server.start()
        assert self.server.process
        self.reaper.add(self.server.process.pid, grace_s=5)

    def stop(self) -> None:
        atexit.unregister(self.stop)
        self.server.stop()
        self.reaper.close()
        shutil.rmtree(self.folder)


class CountingResult(unittest.TextTestResult):
    passed = 0

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        self.passed += 1


def init_worker(counter: Any, *arguments: Any) -> None:
    runner.ParallelTestSuite.init_worker(counter, *arguments)
    multiprocessing.current_process().daemon = False  # a test may start processes of its own
    use_broker(f"{os.environ['REDIS_URL']}?db={runner._worker_id}")  # type: ignore[attr-defined]  # noqa: SLF001


def run_subsuite(arguments: Any) -> Any:
    with contextlib.nullcontext() if _is_measured(arguments[2]) else unmeasured():
        return runner._run_subsuite(arguments)  # type: ignore[attr-defined]  # noqa: SLF001


def _is_measured(tests: Iterable[unittest.TestCase]) -> bool:
    """Of what the services of the others do, little is done in this process; and to measure takes as much CPU time as
    the tests do."""
    return all(
        type(test).__module__.startswith(("tests.api.", "tests.inference."))
        and "heavy" not in getattr(test, "tags", ())
        for test in tests
    )  # fmt: skip


@contextlib.contextmanager
def unmeasured() -> Iterator[None]:
    """Without the cost of measuring coverage, where it is."""
    package = sys.modules.get("coverage")
    measures = package and package.Coverage.current()
    if measures:
        measures.switch_context("")  # saves what there is; to start anew forgets it
        measures.stop()
    yield
    if measures:
        measures.start()


class ParallelTestSuite(runner.ParallelTestSuite):
    init_worker = init_worker
    run_subsuite = run_subsuite


class Runner(runner.DiscoverRunner):
    parallel_test_suite = ParallelTestSuite

    def setup_test_environment(self, **kwargs: Any) -> None:
        super().setup_test_environment(**kwargs)
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ResourceWarning)  # raised where nobody can catch it
        if self.verbosity < 2:  # what tests provoke is not news
            for handler in logging.getLogger().handlers:
                handler.setLevel(logging.CRITICAL)
        self.broker = TestBroker()
        self.broker.start()
        use_broker(self.broker.server.url)
        gc.set_threshold(50_000, 20, 20)  # to look through all that is imported again and again is a tenth of the work
        settings.WHITENOISE_AUTOREFRESH = True  # each test's client would look up all files of the packages

    def run_suite(self, suite: Any, **kwargs: Any) -> Any:
        """The processes of a parallel run that broke would hold on to the broker."""
        try:
            return super().run_suite(suite, **kwargs)
        finally:
            for process in multiprocessing.active_children():
                process.terminate()

    def setup_databases(self, **kwargs: Any) -> Any:
        """SQLite's copies for the processes of a parallel run are copies of a file, which must hold everything. What a
        run that was killed left in their logs would be played into them."""
        creation = connection.creation
        if connection.vendor == "sqlite":
            for log in Path(settings.DATA_DIR).glob("test*.sqlite3-*"):
                log.unlink()
        clone = creation.clone_test_db

        def clone_all(*arguments: Any, **options: Any) -> None:
            if connection.vendor == "sqlite":
                with connection.cursor() as cursor:
                    cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            clone(*arguments, **options)

        with mock.patch.object(creation, "clone_test_db", clone_all):
            return super().setup_databases(**kwargs)

    def teardown_databases(self, *args: Any, **kwargs: Any) -> None:
        """PostgreSQL drops no database that somebody is connected to, and threads that still listen are."""
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
        super().teardown_databases(*args, **kwargs)

    def teardown_test_environment(self, **kwargs: Any) -> None:
        super().teardown_test_environment(**kwargs)
        logging.disable()  # threads that still listen would complain
        self.broker.stop()

    def get_resultclass(self) -> type[CountingResult]:
        """Django's own for --debug-sql and --pdb, and a count of what passed."""
        base = super().get_resultclass() or unittest.TextTestResult
        return type("Result", (CountingResult, base), {})

    def suite_result(self, suite: Any, result: Any, **kwargs: Any) -> int:
        failed = super().suite_result(suite, result, **kwargs)
        sys.stdout.write(f"{result.passed} passed, {failed} failed\n")
        return failed
