"""The pool's book-keeping; real processes are in tests/e2e and tests/faults."""

from types import SimpleNamespace
from unittest import TestCase
from unittest.mock import patch

from celery.concurrency.asynpool import AsynPool

from inference.worker.pool import ReplicaPool


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
