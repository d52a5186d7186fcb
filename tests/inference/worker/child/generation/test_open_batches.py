"""The dispatcher and batches that stay open, against a pool that is driven by hand."""

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from uuid import UUID

from inference.batching.room import Room
from inference.errors import NotYet
from inference.fields.worker_documents import FirstTokenTimes
from inference.worker.calls import READY, BatchReport, ChildCommand, LoadReport
from tests.inference.worker.test_dispatcher import CATALOG, PAST_LIMIT, PID, DispatcherCase


class OpenCase(DispatcherCase):
    """Model a generates step by step, b does not."""

    steps = frozenset("a")

    def load(self, pid: int = PID, **models: str) -> None:
        states = {CATALOG[name].digest: state for name, state in models.items()}
        self.replicas.note_loaded_models(
            LoadReport(pid=pid, models=states, steps=frozenset(CATALOG[name].digest for name in self.steps))
        )

    def step(
        self, *left: UUID, call: SimpleNamespace | None = None, room: int = 1000, longest: int = 0, **report: Any
    ) -> None:
        """The call comes back: these go on, all others of it have ended."""
        call = call or self.last
        call.over = True
        errors = dict.fromkeys(set(call.batch.job_ids) - set(left) - set(report.get("put_off", ())), "")
        rows = CATALOG["a"].max_batch_size - len(left)
        found = Room(rows=rows, tokens=room, longest=longest, others=len(left))
        report = {"errors": errors, "engine_s": 0.01, "left": frozenset(left), "room": found, **report}
        call.done(BatchReport(**report))

    def kick(self) -> SimpleNamespace:
        self.dispatcher.send_next_calls()
        return self.last

    def another(self) -> int:
        """A second child."""
        self.grow()
        return PID + 1

    def command(self, index: int = 0) -> int:
        return int(self.replicas.replicas[index].shared.command)


class JoinTests(OpenCase):
    def test_a_job_joins_others_that_are_being_answered_whatever_its_parameters(self) -> None:
        first, _ = self.add(group="x")
        call = self.kick()
        second, _ = self.add(group="y")
        self.step(first)
        self.assertEqual(
            (self.last.batch.batch, self.last.batch.job_ids, self.last.batch.goes_on),
            (call.batch.batch, (second,), True),
        )
        self.assertEqual(len(self.dispatcher.batches), 1)

    def test_no_job_takes_more_room_than_the_context_that_its_model_reported(self) -> None:
        first, _ = self.add(length=10)
        self.kick()
        self.step(first, room=900, cut_at=100)
        second, _ = self.add(length=4000)
        self.step(first, room=900, cut_at=100)
        self.assertEqual(self.last.batch.job_ids, (second,))

    def test_who_has_ended_is_released_at_once_and_the_others_go_on(self) -> None:
        (one, ended), (two, going) = self.add(), self.add()
        self.kick()
        self.step(two, errors={one: ""})
        self.assertEqual((ended.events, going.events), ([("finished", "")], []))
        self.step(errors={two: "timed_out"})
        self.assertEqual(going.events, [("finished", "timed_out")])
        self.assertEqual((self.dispatcher.batches, self.dispatcher.backlog.held), ({}, {}))

    def test_one_that_somebody_else_has_claimed_is_released(self) -> None:
        one, _ = self.add()
        self.kick()
        _, request = self.add()
        self.step(one)
        self.step(one, errors={})
        self.assertEqual(request.events, [("finished", "")])

    def test_nobody_joins_without_room(self) -> None:
        one, _ = self.add()
        self.kick()
        self.add(length=100)
        self.step(one, room=99)
        self.assertEqual(self.last.batch.job_ids, ())
        self.step(one, room=100)
        self.assertEqual(len(self.last.batch.job_ids), 1)

    def test_a_long_one_waits_for_what_the_others_grow_by_beside_it(self) -> None:
        """Where each row takes as many tokens as the longest."""
        one, _ = self.add()
        self.kick()
        long, _ = self.add(length=300)
        self.step(one, room=499, longest=100)
        self.assertEqual(self.last.batch.job_ids, ())
        self.step(one, room=500, longest=100)
        self.assertEqual(self.last.batch.job_ids, (long,))

    def test_those_that_join_together_share_the_room(self) -> None:
        one, _ = self.add()
        self.kick()
        short, _ = self.add(length=50)
        self.add(length=200)
        self.step(one, room=350, longest=100)
        self.assertEqual(self.last.batch.job_ids, (short,))

    def test_rows_have_a_limit(self) -> None:
        jobs = [self.add()[0] for _ in range(CATALOG["a"].max_batch_size)]
        self.kick()
        self.add()
        self.step(*jobs)
        self.assertEqual(self.last.batch.job_ids, ())
        self.step(*jobs[1:], errors={jobs[0]: ""})
        self.assertEqual(len(self.last.batch.job_ids), 1)

    def test_the_oldest_of_the_highest_priority_joins_first_and_is_not_passed(self) -> None:
        one, _ = self.add()
        self.kick()
        self.add(priority=2, length=10)
        large, _ = self.add(priority=1, length=500)
        self.step(one, room=400)
        self.assertEqual(self.last.batch.job_ids, ())
        self.step(one, room=500)
        self.assertEqual(self.last.batch.job_ids, (large,))

    def test_one_that_cannot_join_yet_is_tried_again_by_itself(self) -> None:
        one, _ = self.add()
        call = self.kick()
        later, request = self.add()
        self.step(one)
        self.step(one, put_off=frozenset({later}))
        self.step(errors={one: ""})
        self.now()
        self.kick()
        self.assertEqual((self.last.batch.job_ids, self.last.batch.takes_over), ((later,), (call.batch.batch,)))
        self.assertEqual(request.events, [])

    def test_one_that_cannot_join_yet_is_kept_though_nobody_else_is_left(self) -> None:
        one, request = self.add()
        call = self.kick()
        self.step(put_off=frozenset({one}))
        self.now()
        self.kick()
        self.assertEqual((self.last.batch.job_ids, self.last.batch.takes_over), ((one,), (call.batch.batch,)))
        self.assertEqual(request.events, [])

    def test_what_waits_is_shared_by_idle_children(self) -> None:
        self.another()
        for _ in range(6):
            self.add()
        self.dispatcher.send_next_calls()
        self.assertEqual([len(call.batch.job_ids) for call in self.pool.calls], [3, 3])

    def test_a_step_is_interrupted_for_who_waits(self) -> None:
        one, _ = self.add()
        self.kick()
        self.step(one)
        self.assertEqual(self.command(), ChildCommand.CONTINUE)
        self.add()
        self.dispatcher.send_next_calls()
        self.assertEqual(self.command(), ChildCommand.YIELD)
        self.step(one)
        self.assertEqual(self.command(), ChildCommand.CONTINUE)

    def test_a_step_is_not_interrupted_for_one_that_there_is_no_room_for(self) -> None:
        one, _ = self.add()
        self.kick()
        self.step(one, room=99)
        self.add(length=100)
        self.dispatcher.send_next_calls()
        self.assertEqual(self.command(), ChildCommand.CONTINUE)


class FactsTests(OpenCase):
    def test_what_is_generated_is_in_the_snapshot(self) -> None:
        self.another()
        one, _ = self.add()
        self.kick()
        self.step(one, room=900, capacity=1000, tokens=5, firsts_s=(0.1, 0.3))
        generation = self.dispatcher.make_snapshot().generation["a"]
        self.assertEqual(
            (generation.rows, generation.room, generation.tokens, generation.tokens_per_s),
            (1, 1900, 5, 0.5),
        )
        self.assertEqual(generation.first_token_s, FirstTokenTimes(p50=0.1, p95=0.1))
        self.step(errors={one: ""}, room=1000, capacity=1000)
        self.assertEqual(self.dispatcher.make_snapshot().generation["a"].room, 2000)

    def test_speed_counts_what_is_generated_for_those_that_go_on(self) -> None:
        ids = [self.add()[0] for _ in range(4)]
        self.kick()
        for _ in range(9):
            self.step(*ids, capacity=1000, engine_s=0.5, tokens=40)
        self.assertEqual(self.dispatcher.make_snapshot().speeds["a"], 0.0)
        self.step(*ids[1:], capacity=1000, engine_s=0.5, tokens=40, answers=(100,))
        self.step(*ids[1:], capacity=1000, engine_s=0.5, tokens=30)
        self.assertAlmostEqual(self.dispatcher.make_snapshot().speeds["a"], 0.7, places=1)


class TurnTests(OpenCase):
    def test_steps_and_batches_of_another_model_take_turns(self) -> None:
        one, _ = self.add()
        self.kick()
        self.step(one)
        for _ in range(2):
            self.add("b", group="apart" * len(self.pool.calls))
        self.dispatcher.send_next_calls()
        self.assertEqual(self.command(), ChildCommand.YIELD)
        models = []
        for _ in range(4):
            if self.last.batch.model == "a":
                self.step(one)
            else:
                self.pool.finish(self.last)
            models.append(self.last.batch.model)
        self.assertEqual(models, ["b", "a", "a", "a"])

    def test_one_that_waits_for_its_turn_is_left_as_it_is(self) -> None:
        one, _ = self.add()
        call = self.kick()
        joined, request = self.add()
        self.step(one)
        self.add("b")
        self.step(one, joined)
        self.assertEqual((self.last.batch.model, self.last.batch.waiting), ("b", (call.batch.batch,)))
        self.dispatcher.end_stuck_and_expired()
        self.assertEqual(len(self.dispatcher.backlog.isolation), 0)
        self.pool.finish(self.last)
        self.step(errors={one: "", joined: ""})
        self.assertEqual((request.events, self.dispatcher.backlog.held), ([("finished", "")], {}))

    def test_a_batch_of_another_model_goes_where_nothing_is_open(self) -> None:
        one, _ = self.add()
        open_at = self.kick().pid
        self.step(one)
        other = self.another()
        self.add("b")
        self.dispatcher.send_next_calls()
        self.assertEqual((open_at, self.last.pid, self.last.batch.model), (PID, other, "b"))

    def test_a_job_that_runs_alone_waits_for_the_open_batch_which_nobody_joins(self) -> None:
        one, _ = self.add()
        self.kick()
        alone, _ = self.add("b", alone=True)
        self.add()
        self.step(one)
        self.assertEqual(self.last.batch.job_ids, ())
        self.step(errors={one: ""})
        self.assertEqual((self.last.batch.job_ids, self.last.batch.alone), ((alone,), True))

    def test_after_one_that_ran_alone_others_have_as_long_a_turn_as_all_its_steps_took(self) -> None:
        alone, _ = self.add(alone=True)
        self.kick().accept(PID)
        (batch,) = self.dispatcher.batches.values()
        batch.begun_at -= 60
        self.step(alone)
        self.last.accept(PID)
        self.step(errors={alone: ""})
        self.add()
        self.kick()
        self.assertGreater(self.dispatcher.backlog.isolation.others_until, time.monotonic() + 50)  # the clock stands

    def test_nobody_joins_while_the_child_is_to_load_something(self) -> None:
        one, _ = self.add()
        self.kick()
        two, _ = self.add()
        self.pool.to_load_next = PID
        self.step(one)
        self.assertEqual((self.last.batch.job_ids, self.dispatcher.backlog.child_has_open_batch(PID)), ((), True))
        self.pool.to_load_next = None
        self.step(one)
        self.assertEqual(self.last.batch.job_ids, (two,))

    def test_nor_does_it_begin_what_would_stay_open(self) -> None:
        self.steps = frozenset("ab")
        self.load(a=READY, b=READY)
        one, _ = self.add()
        self.kick()
        self.pool.to_load_next = PID
        self.add("b")
        for _ in range(3):
            self.step(one)
            self.assertEqual(self.last.batch.model, "a")
        self.pool.to_load_next = None
        self.step(one)
        self.assertEqual(self.last.batch.model, "b")


class EndTests(OpenCase):
    def test_of_a_child_that_dies_the_culprit_is_searched_for_by_itself(self) -> None:
        jobs = [self.add() for _ in range(4)]
        self.kick()
        self.step(*(job_id for job_id, _ in jobs))
        self.pool.lose(self.last)
        half = self.last
        self.assertEqual(half.batch.job_ids, tuple(job_id for job_id, _ in jobs[:2]))
        self.add()
        self.step(*half.batch.job_ids)
        self.assertEqual((self.last.batch.job_ids, self.last.batch.goes_on), ((), True))
        self.step(errors=dict.fromkeys(half.batch.job_ids, ""))
        self.assertEqual(self.last.batch.job_ids, (jobs[2][0],))
        for _ in range(2):
            self.pool.lose(self.last)
        self.assertEqual(self.last.batch.job_ids, (jobs[3][0],))
        self.step(errors={jobs[3][0]: ""})
        self.assertEqual((self.last.batch.job_ids, self.last.batch.verdict), ((jobs[2][0],), "crashed"))

    def test_what_was_open_in_a_child_that_died_of_something_else_runs_again_unblamed(self) -> None:
        one, request = self.add()
        call = self.kick()
        self.step(one)
        self.add("b")
        self.step(one)
        self.assertEqual(self.last.batch.model, "b")
        self.pool.dead.append(PID)
        self.pool.lose(self.last)
        self.dispatcher.end_stuck_and_expired()
        self.pool.dead.clear()
        self.pool.finish(self.kick())
        calls = [call.batch for call in self.pool.calls if one in call.batch.job_ids]
        self.assertEqual((len(calls), calls[-1].takes_over), (2, (call.batch.batch,)))
        self.assertEqual((self.dispatcher.backlog.held[str(one)].crashes_alone, request.events), (0, []))

    def test_what_a_child_has_run_to_its_end_as_the_worker_leaves_is_not_called_lost(self) -> None:
        one, _ = self.add()
        self.kick()
        self.step(one)
        self.add("b")
        self.step(one)
        self.dispatcher.drain()
        self.pool.closing = True
        self.pool.finish(self.last)
        self.pool.dead.append(PID)
        with self.assertNoLogs("inference.worker.dispatcher", "ERROR"):
            self.dispatcher.end_stuck_and_expired()

    def test_a_job_runs_again_once_if_its_child_died_before_it_had_the_call(self) -> None:
        one, _ = self.add()
        self.kick()
        self.step(one)
        self.pool.dead.append(PID)
        self.dispatcher.end_stuck_and_expired()
        self.pool.lose(self.last, NotYet("not open in the child that the pool gave it to"))
        self.assertEqual(len(self.dispatcher.backlog.isolation), 1)

    def test_what_cannot_be_settled_in_the_middle_is_taken_over(self) -> None:
        (one, request), (two, _) = self.add(), self.add()
        call = self.kick()
        request.note_job_end = Mock(side_effect=RuntimeError("a bug"))
        self.step(two, errors={one: ""})
        self.now()
        self.kick()
        self.assertEqual((self.last.batch.takes_over, self.last.batch.waiting), ((call.batch.batch,), ()))

    def test_a_call_that_the_pool_forgot_is_made_again_with_those_who_joined(self) -> None:
        one, _ = self.add()
        self.kick()
        self.step(one)
        second, _ = self.add()
        self.step(one)
        self.assertEqual(self.last.batch.job_ids, (second,))
        self.last.over = True
        self.pool.held.clear()
        self.dispatcher.end_stuck_and_expired()
        self.assertEqual((self.last.batch.job_ids, self.last.batch.goes_on), ((), True))
        self.step(errors={one: ""})
        self.assertEqual(self.last.batch.job_ids, (second,))

    def busy_with(self, job: UUID) -> None:
        """The child says of which job alone a call of its engine is."""
        self.replicas.replicas[0].shared.job[:] = job.bytes

    def test_the_job_that_the_engine_was_busy_with_alone_is_to_blame_and_no_other(self) -> None:
        jobs = [self.add()[0] for _ in range(4)]
        self.kick()
        self.step(*jobs)
        late, _ = self.add()
        self.step(*jobs)
        self.busy_with(late)
        self.pool.lose(self.last, PAST_LIMIT)
        self.assertEqual((self.last.batch.job_ids, self.last.batch.again), (tuple(jobs), True))
        self.pool.finish(self.last)
        self.assertEqual((self.last.batch.job_ids, self.last.batch.verdict), ((late,), ""))
        self.busy_with(late)
        self.pool.lose(self.last, PAST_LIMIT)
        self.assertEqual((self.last.batch.job_ids, self.last.batch.verdict), ((late,), "timed_out"))

    def test_it_ends_a_search_for_the_culprit(self) -> None:
        jobs = [self.add()[0] for _ in range(4)]
        self.kick()
        self.pool.lose(self.last)
        suspects = self.last.batch.job_ids
        self.busy_with(suspects[0])
        self.pool.lose(self.last)
        self.assertEqual(set(self.last.batch.job_ids), {*jobs} - {suspects[0]})
        self.pool.finish(self.last)
        self.assertEqual(self.last.batch.job_ids, suspects[:1])

    def test_one_that_is_not_open_in_its_child_any_more_runs_again(self) -> None:
        one, request = self.add()
        call = self.kick()
        self.step(one)
        self.pool.lose(self.last, NotYet("not open"))
        self.now()
        self.kick()
        self.assertEqual((self.last.batch.takes_over, self.last.batch.goes_on), ((call.batch.batch,), False))
        self.assertEqual(request.events, [])

    def test_a_worker_that_leaves_has_it_run_to_the_end(self) -> None:
        one, _ = self.add()
        self.kick()
        self.step(one)
        _, waiting = self.add()
        self.pool.closing, calls = True, len(self.pool.calls)  # which Celery closes first
        self.replicas.drain_children()
        self.dispatcher.drain()
        self.assertEqual((self.command(), waiting.events), (ChildCommand.DRAIN, ["given back"]))
        self.step(one)  # its child was between two calls: at its end it runs what is open
        self.replicas.send_step_command(PID, ChildCommand.YIELD)  # as for the turn of another
        self.assertEqual((len(self.pool.calls), self.command()), (calls, ChildCommand.DRAIN))

    def test_a_lost_connection_gives_back_who_waits_and_the_batch_goes_on(self) -> None:
        one, request = self.add()
        self.kick()
        self.step(one)
        self.add()
        self.dispatcher.forget_messages()
        self.step(one)
        self.assertEqual((self.last.batch.job_ids, self.last.batch.goes_on), ((), True))
        self.step(errors={one: ""})
        self.assertEqual((request.events, self.dispatcher.backlog.held), ([], {}))

    def test_a_new_entry_is_not_joined_with_jobs_of_the_old(self) -> None:
        one, _ = self.add()
        self.kick()
        self.add()
        self.replicas.specs = {**CATALOG, "a": replace(CATALOG["a"], max_queued=5)}
        self.step(one)
        self.assertEqual(self.last.batch.job_ids, ())
