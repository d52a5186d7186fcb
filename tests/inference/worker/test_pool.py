"""The pool's book-keeping; real processes are in tests/e2e and tests/faults."""

import time
from types import SimpleNamespace
from typing import Any
from unittest import TestCase
from unittest.mock import patch
from uuid import uuid4

from billiard.pool import RUN
from celery.concurrency.asynpool import AsynPool

from inference.catalog.specs import ModelSpec
from inference.worker import child
from inference.worker.calls import READY, Loaded
from inference.worker.devices import Plan
from inference.worker.pool import ReplicaPool
from inference.worker.replicas import Replicas


class Call(SimpleNamespace):
    """A call in the pool's cache: written to a child or not, accepted by it or not."""

    def __init__(
        self, pool: ReplicaPool, name: str, *, child_lives: bool | None = None, pid: int | None = None
    ) -> None:
        child = SimpleNamespace(_is_alive=lambda: child_lives) if child_lives is not None else None
        super().__init__(_write_to=child, _accepted=pid is not None, _worker_pid=pid)
        self.discard = lambda: pool._cache.pop(name, None)
        pool._cache[name] = self


def forget_what_is_not_accepted(pool: ReplicaPool) -> None:
    for call in tuple(pool._cache.values()):
        if not call._accepted:
            call.discard()


@patch.object(AsynPool, "flush", forget_what_is_not_accepted)
class FlushTests(TestCase):
    def setUp(self) -> None:
        self.pool = ReplicaPool.__new__(ReplicaPool)
        self.pool._cache = {}

    def test_a_call_that_a_child_has_is_kept_though_it_was_not_accepted_yet(self) -> None:
        begun = Call(self.pool, "begun", child_lives=True)
        Call(self.pool, "waiting")
        Call(self.pool, "running", child_lives=True, pid=7)
        self.pool.flush()
        self.assertEqual(set(self.pool._cache), {"begun", "running"})
        self.assertFalse(begun._accepted)

    def test_a_call_whose_child_died_meanwhile_is_forgotten(self) -> None:
        Call(self.pool, "begun", child_lives=False)
        self.pool.flush()
        self.assertEqual(self.pool._cache, {})


class GivenMoreTests(TestCase):
    """A child that was given two calls."""

    def setUp(self) -> None:
        self.pool: Any = ReplicaPool.__new__(ReplicaPool)
        self.process = SimpleNamespace(pid=11, inqW_fd=5)
        self.pool._pool, self.pool._busy_workers, self.pool._active_writes = [self.process], {5}, set()
        self.pool._mark_worker_as_available = self.pool._busy_workers.discard
        self.pool._cache = {name: SimpleNamespace(_write_to=self.process) for name in (1, 2)}
        self.enterContext(patch.object(ReplicaPool, "_changed"))

    def test_it_is_idle_once_both_are_over(self) -> None:
        for job, busy in ((1, {5}), (2, set[int]())):
            self.pool.on_job_ready(job, 0, None, 5)
            del self.pool._cache[job]  # as the pool does then
            self.assertEqual(self.pool._busy_workers, busy)

    def test_it_may_have_more_unless_a_call_is_still_written_to_it_or_it_is_to_load_something(self) -> None:
        self.assertTrue(self.pool.may_have_more(11))
        self.assertFalse(self.pool.may_have_more(12))
        self.pool._active_writes.add(5)
        self.assertFalse(self.pool.may_have_more(11))
        self.pool._active_writes.clear()
        self.pool.replicas = SimpleNamespace(wanted=lambda pids: pids[0])
        self.assertFalse(self.pool.may_have_more(11))


class OrderTests(TestCase):
    """Two children run model a, and each is to load b beside it."""

    def setUp(self) -> None:
        models = {name: ModelSpec(name=name, engine="x:Y") for name in ("a", "b")}
        replicas = Replicas(Plan(worker=uuid4(), devices=("cpu",), replicas=2, threads=1), {"a": models["a"]})
        for index, pid in enumerate((11, 22)):
            replicas.started(index, pid)
            replicas.loaded(Loaded(pid=pid, models={models["a"].digest: READY}))
        replicas.follow(models)
        self.kept: set[int] = set()  # children in which a batch is open
        self.pool: Any = ReplicaPool.__new__(ReplicaPool)
        self.pool.replicas, self.pool.keeps = replicas, self.kept.__contains__
        self.pool._pool = [SimpleNamespace(pid=pid, inqW_fd=pid) for pid in (11, 22)]
        self.pool._fileno_to_inq = {process.pid: process for process in self.pool._pool}
        self.pool._state, self.pool._cache, self.pool._busy_workers = RUN, {}, set()
        self.pool._proc_alive_timeout = 60
        self.send = self.enterContext(patch.object(ReplicaPool, "send", return_value=None))

    def order(self) -> int | None:
        """The child that is told to load something."""
        self.send.reset_mock()
        self.pool.order()
        if not self.send.called:
            return None
        pid, function, _ = self.send.call_args.args
        self.assertIs(function, child.have)
        return int(pid)

    def test_one_in_which_nothing_is_open_goes_first_and_nobody_is_kept_from_joining(self) -> None:
        self.kept.add(11)
        self.pool._busy_workers.add(22)
        self.assertEqual((self.order(), self.pool.awaited), (None, None))
        self.pool._busy_workers.clear()
        self.assertEqual((self.order(), self.pool.awaited), (22, None))

    def test_where_all_have_open_batches_one_at_a_time_is_waited_for(self) -> None:
        self.kept.update((11, 22))
        self.assertEqual((self.order(), self.pool.awaited), (None, 11))
        self.kept.remove(11)
        self.assertEqual((self.order(), self.pool.awaited), (11, None))

    def test_nobody_is_waited_for_while_another_loads(self) -> None:
        self.kept.update((11, 22))
        self.pool._ordered = self.pool._cache["order"] = object()
        self.assertEqual((self.order(), self.pool.awaited), (None, None))

    def test_the_longer_nobody_could_join_the_longer_until_the_next_try(self) -> None:
        self.kept.update((11, 22))
        self.order()
        self.pool._awaited_at -= 60
        self.kept.remove(11)
        self.order()
        self.send.call_args.kwargs["error_callback"]("it failed")
        self.assertGreater(self.pool.replicas.try_at, time.monotonic() + 500)
