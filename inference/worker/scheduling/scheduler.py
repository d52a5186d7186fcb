"""The choice of what an idle replica runs next: a new batch or the next steps of an open one, by turns."""

from collections.abc import Callable, Collection, Sequence
from uuid import uuid4

from inference import clock
from inference.worker.calls import IN_HAND, ChildCommand
from inference.worker.processes.replica_pool import ReplicaPool
from inference.worker.scheduling.backlog import Backlog
from inference.worker.scheduling.held_jobs import Batch, Bisection, HeldJob

LONG = 2.0  # times its claim and record: of calls that take longer two in hand suffice, and the next is chosen later


class Scheduler:
    """The scheduler of calls to child processes.

    Its argument `call` sends the next call of a batch to its child process, and returns True if it could.
    """

    def __init__(self, backlog: Backlog, pool: ReplicaPool, call: Callable[[Batch], bool]) -> None:
        self.backlog = backlog
        self.replicas = backlog.replicas
        self.may_begin = True
        self._pool, self._call = pool, call
        self._others_turn: set[int] = set()  # pids of children that ran steps last: new batches have the next turn

    def give_out_work(self) -> None:
        """Give work to every idle replica, in the order of `find_idle_pids`.

        Loading and unloading of models goes before.
        """
        if self.may_begin:
            self._pool.assign_models()
        idle = self._pool.find_idle_pids()
        for place, pid in enumerate(idle):
            self._give_work(pid, idle=len(idle) - place)
        if self.may_begin:
            self._pool.load_next_models(self._has_jobs_for)
        self._give_work_ahead()
        self._call_back_batches()

    def _has_jobs_for(self, pid: int) -> bool:
        """Return True if jobs wait that a child process can run, if only after a pause."""
        return self.backlog.has_waiting_jobs(self.replicas.runnable - self.replicas.find_models_child_lacks(pid))

    def stop_new_batches(self) -> None:
        """Begin no other batch: the worker leaves."""
        self.may_begin = False

    def list_open_batches(self, pid: int) -> list[Batch]:
        """Return the batches that are open in a child process, in the order of their turns."""
        found = (batch for batch in self.backlog.batches.values() if batch.is_open and batch.pid == pid)
        return sorted(found, key=lambda batch: batch.called_at)

    def _give_work(self, pid: int, *, idle: int) -> None:
        opened = self.list_open_batches(pid)
        if opened and pid not in self._others_turn:
            self._others_turn.add(pid)
            self._continue_batch(opened[0])
            return
        self._others_turn.discard(pid)
        if not self._begin_batch(pid, opened, idle) and opened:
            self._continue_batch(opened[0])

    def _begin_batch(self, pid: int, opened: Collection[Batch], idle: int) -> bool:
        """Begin a new batch in a child process, of no model that has a batch open there.

        Return True if there was one.
        """
        if not self.may_begin or self._is_kept_free():
            return False
        following = self.backlog.take_next_batch(self._list_excluded_models(pid, opened), idle=idle)
        if following is None:
            return False
        jobs, search, is_closed = following
        batch = self._make_batch(pid, jobs, search, is_closed=is_closed)
        if self._call(batch):
            self.backlog.note_batch_start(batch)
        return True

    def _make_batch(
        self, pid: int, jobs: list[HeldJob], search: Bisection | None = None, *, is_closed: bool = False
    ) -> Batch:
        spec, device = self.backlog.specs[jobs[0].model], self.replicas.find_device(pid)
        return Batch(id=uuid4(), spec=spec, jobs=jobs, pid=pid, device=device, search=search, is_closed=is_closed)

    def list_batches_in_hand(self, pid: int) -> list[Batch]:
        """Return the batches of a child process whose calls are not over, in the order in which it runs them."""
        return [batch for batch in self.backlog.batches.values() if batch.result and batch.pid == pid]

    def _give_work_ahead(self) -> None:
        """Give more calls to busy child processes that work ahead, first to the one that has the fewest."""
        pids = {batch.pid for batch in self.backlog.batches.values() if self.replicas.can_child_work_ahead(batch.pid)}
        while able := [pid for pid in pids if self._may_have_more(pid)]:
            if not any(map(self._begin_batch_ahead, sorted(able, key=lambda pid: len(self.list_batches_in_hand(pid))))):
                return

    def _may_have_more(self, pid: int) -> bool:
        """Return True if a busy child process may be given another call.

        No call goes beside a batch that is run again: a batch that dies alone in its child is known to be at fault.
        """
        running = self.list_batches_in_hand(pid)
        return (
            self.may_begin
            and 0 < len(running) < self._choose_call_limit(running)
            and not self.list_open_batches(pid)
            and not any(batch.is_closed or self.replicas.generates_by_steps(batch.spec.name) for batch in running)
            and not self._is_kept_free()
            and self._pool.can_take_another_call(pid)
        )

    def _choose_call_limit(self, running: Sequence[Batch]) -> int:
        return IN_HAND - 1 if all(batch.spec.name in self.backlog.long for batch in running) else IN_HAND

    def _begin_batch_ahead(self, pid: int) -> bool:
        if not (jobs := self.backlog.take_batch_ahead(self.replicas.find_models_child_lacks(pid))):
            return False
        batch = self._make_batch(pid, jobs)
        if not self._call(batch):
            return False
        self.backlog.note_batch_start(batch)
        for each in self.list_batches_in_hand(pid):
            each.note_concurrent_batch()
        return True

    def _continue_batch(self, batch: Batch) -> None:
        """Send the next call of an open batch, with the jobs that join now."""
        batch.add_joining_jobs(self.backlog.take_joining_jobs(batch) if self._may_be_joined(batch) else [])
        self.backlog.update_newest_creation_times(batch)
        self._call(batch)

    def _may_be_joined(self, batch: Batch) -> bool:
        """Return True if jobs may join an open batch.

        None may join while its child process is to load a model, or while a job is to run alone.
        """
        return (
            self.may_begin
            and not batch.is_closed
            and not self._pool.is_to_load_next(batch.pid)
            and batch.spec is self.backlog.specs.get(batch.spec.name)
            and batch.spec.name not in self.replicas.find_models_child_lacks(batch.pid)
            and not self._is_kept_free()
        )

    def _list_excluded_models(self, pid: int, opened: Collection[Batch]) -> set[str]:
        """Return the models of which no batch is begun in a child process.

        They are the models that it lacks and those with a batch open in it. If it is to load a model once none is open,
        they are also the models whose batches would stay open.
        """
        names = {*self.replicas.find_models_child_lacks(pid), *(batch.spec.name for batch in opened)}
        if self._pool.is_to_load_next(pid):
            names.update(filter(self.replicas.generates_by_steps, self.backlog.queues))
        return names

    def _call_back_batches(self) -> None:
        """Call open batches back after their present step, where other work waits."""
        for batch in self.backlog.batches.values():
            if batch.result and batch.is_open and (self._child_has_other_work(batch) or self._may_grow(batch)):
                self.replicas.send_step_command(batch.pid, ChildCommand.YIELD)

    def _child_has_other_work(self, batch: Batch) -> bool:
        """Return True if other work waits for the child process of `batch`."""
        opened = self.list_open_batches(batch.pid)
        if len(opened) > 1:
            return True
        return (
            self.may_begin
            and not self._is_kept_free()
            and self.backlog.has_next_batch(self._list_excluded_models(batch.pid, opened))
        )

    def _may_grow(self, batch: Batch) -> bool:
        return self.backlog.can_any_job_join(batch) and self._may_be_joined(batch)

    def _is_kept_free(self) -> bool:
        """Return True if a job that nothing may run beside runs, or waits until all running batches have ended."""
        if any(batch.must_run_alone for batch in self.backlog.batches.values()):
            return True
        return (
            bool(self.backlog.batches)
            and self.backlog.find_next_lone_group(clock.estimate_earliest_now_s()) is not None
        )
