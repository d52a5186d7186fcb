"""`manage.py test`: Django's runner, with a broker of its own on a private socket.

Processes of a parallel run share the server, each in a database of its own.
"""

import argparse
import atexit
import gc
import importlib.util
import logging
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import unittest
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any
from unittest import mock

from django.conf import settings
from django.db import connection
from django.test import runner

from inference.broker import address, redis_client
from inference.status import workers
from tests import once, processes
from tests.conditions import PATIENCE_S
from tests.embedded_broker import EmbeddedBroker
from tests.second_look import TAG, Unstable, look_again
from tools.launcher.reaper import Reaper

LINES = 20  # that say how far a run is


def use_broker(url: str) -> None:
    """Point this process, and those it starts, at the server."""
    from project.celery import app

    os.environ["REDIS_URL"] = url
    os.environ.pop("BROKER_URL", None)
    settings.REDIS_URL = url
    settings.CELERY_BROKER_URL = address.make_kombu_url(url)
    app.conf.update(broker_url=settings.CELERY_BROKER_URL)
    redis_client.TIMEOUT_S = PATIENCE_S  # a server that other tests keep from its core is not away


class TestBroker:
    """Ends with the test run, also when that is killed."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="inference-test-", dir=address.find_temporary_folder()))
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


class Result(unittest.TextTestResult):
    """Counts what passed, and says in lines how far the run is."""

    total = 0  # tests of the run
    passed = 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.dots = False
        self.started = time.monotonic()  # for the person who waits

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        self.passed += 1

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        if self.testsRun * LINES // self.total > (self.testsRun - 1) * LINES // self.total:
            failed = len(self.failures) + len(self.errors)
            took_s = time.monotonic() - self.started
            self.stream.writeln(f"{self.testsRun:5} of {self.total} tests, {failed} failed, {took_s:.0f} s")
            self.stream.flush()


def init_worker(url: str, *arguments: Any) -> None:
    """Point a process of a parallel run at its own databases, of Django and of the broker."""
    runner._init_worker(*arguments)  # type: ignore[attr-defined]  # noqa: SLF001
    use_broker(f"{url}?db={runner._worker_id}")  # type: ignore[attr-defined]  # noqa: SLF001


class RemoteResult(runner.RemoteTestResult):
    """Tells the main process of a sub-test that failed as of its test, since it holds all that the test case has."""

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            err[1].add_note(f"In {subtest}.")
            add = self.addFailure if issubclass(err[0], test.failureException) else self.addError
            add(test, err)


class RemoteRunner(runner.RemoteTestRunner):
    resultclass = RemoteResult


class ParallelTestSuite(runner.ParallelTestSuite):
    """Runs test classes in several processes; when one of these dies the run ends, where Django's would wait for ever.

    What starts processes of its own begins first, since it takes longest.
    """

    runner_class = RemoteRunner

    def __init__(self, subsuites: Iterable[unittest.TestSuite], *arguments: Any, **options: Any) -> None:
        first = sorted(subsuites, key=lambda tests: TAG not in getattr(next(iter(tests)), "tags", ()))
        super().__init__(first, *arguments, **options)

    def run(self, result: Any, debug: bool = False) -> Any:
        self.initialize_suite()
        gc.freeze()  # what is imported lives as long as the processes, which share it
        context = multiprocessing.get_context("fork")
        shared = (
            os.environ["REDIS_URL"], context.Value("i", 0), None, None, None, None, self.debug_mode, self.used_aliases
        )  # fmt: skip
        with ProcessPoolExecutor(self.processes, context, init_worker, shared) as pool:
            futures = [
                pool.submit(runner._run_subsuite, (self.runner_class, index, tests, self.failfast, self.buffer))  # type: ignore[attr-defined]  # noqa: SLF001
                for index, tests in enumerate(self.subsuites)
            ]
            for future in as_completed(futures):
                index, events = future.result()
                tests = list(self.subsuites[index])
                for event in events:
                    self.handle_event(result, tests, event)
                if result.shouldStop:
                    pool.shutdown(cancel_futures=True)
                    break
        return result


class Runner(runner.DiscoverRunner):
    parallel_test_suite = ParallelTestSuite
    unstable: Sequence[Unstable] = ()

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.set_defaults(parallel=int(os.environ.get("DJANGO_TEST_PROCESSES") or processes.side_by_side()))

    def setup_test_environment(self, **kwargs: Any) -> None:
        if not importlib.util.find_spec("hypothesis"):
            sys.exit("The tests need what requirements-dev.txt lists. `make test` installs it, and runs them.")
        once.folder()
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # a second thread slows models this small down
        super().setup_test_environment(**kwargs)
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ResourceWarning)  # raised where nobody can catch it
        # Threads that outlive their test use the module, too: Hypothesis takes that for the work of its strategy.
        warnings.filterwarnings("ignore", "Do not use the `random` module inside strategies")
        if self.verbosity < 2:  # what tests provoke is not news
            for handler in logging.getLogger().handlers:
                handler.setLevel(logging.CRITICAL)
        self.broker = TestBroker()
        self.broker.start()
        use_broker(self.broker.server.url)
        workers.REMEMBERED_S = 0.0  # a test changes rows, and asks for them at once
        gc.set_threshold(50_000, 20, 20)  # to look through all that is imported again and again is a tenth of the work
        settings.WHITENOISE_AUTOREFRESH = True  # each test's client would look up all files of the packages

    def run_suite(self, suite: Any, **kwargs: Any) -> Any:
        """Run the suite, and then by itself once more what failed of the end-to-end tests."""
        self.total = suite.countTestCases()
        result = super().run_suite(suite, **kwargs)
        self.unstable = look_again(result, self.run_again)
        return result

    def run_again(self, suite: unittest.TestSuite) -> Any:
        self.total = suite.countTestCases()
        self.log(f"\nA second look at {self.total} end-to-end test(s), by themselves:")
        return super().run_suite(suite)

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

    def get_resultclass(self) -> type[Result]:
        """Return a class that is also Django's own, where --debug-sql or --pdb asks for one."""
        base = super().get_resultclass() or unittest.TextTestResult
        return type("Result", (Result, base), {"total": self.total})

    def suite_result(self, suite: Any, result: Any, **kwargs: Any) -> int:
        """Print what was skipped and why, what was unstable, and the counts. Return how many tests failed."""
        failed = super().suite_result(suite, result, **kwargs)
        passed = result.passed + len(self.unstable)
        lines = [f"skipped: {test.id()}: {reason}" for test, reason in result.skipped]
        lines += [f"{test}" for test in self.unstable]
        lines += [f"{passed} passed, {failed} failed, {len(result.skipped)} skipped"]
        sys.stdout.write("\n".join([*lines, ""]))
        return failed
