"""What a pool child does with a batch, beside its engine."""

from __future__ import annotations

import dataclasses
import gc
import os
import pickle
import tempfile
import traceback
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import TestCase
from unittest.mock import patch
from uuid import uuid4

import torch
from billiard.einfo import ExceptionInfo
from django.test import TransactionTestCase

from api import codec
from inference import errors
from inference.catalog.parameters import ParameterSpec
from inference.catalog.sizes import lengths
from inference.catalog.specs import ModelSpec
from inference.engines.base import Engine
from inference.engines.runtime import engine_calls, json_values
from inference.models import Job, Status
from inference.store import job_rows
from inference.streams.output_texts import extract_generated_text
from inference.worker.calls import READY, BatchCall, BatchReport, RemoteError
from inference.worker.child import served_calls
from inference.worker.child.loaded_models import LoadedModels
from tests import tiny_models
from tests.inference.engines.runtime.test_engine_calls import NeedsMore, Unspeakable


class Answers(Engine):
    """Gives each input its answer."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        super().__init__(ModelSpec(name="m", engine="x:Y"))
        self.answers = answers

    def load(self, device: str) -> None:
        pass

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        return [self.answers[text] for text in inputs]


def run_batch(
    engines: dict[str, Engine], *jobs: Job, verdict: str = "", is_last: bool = False, host_device: str = "cpu"
) -> BatchReport:
    job_rows.insert_jobs(list(map(job_rows.convert_job_to_row, jobs)))
    replica = LoadedModels(
        worker=uuid4(),
        device="cpu",
        host_device=host_device,
        specs={engine.spec.digest: engine.spec for engine in engines.values()},
        engines={engine.spec.load_digest: engine for engine in engines.values()},
    )
    digest = next((engine.spec.digest for engine in engines.values()), "of what is not loaded")
    ids = tuple(job.pk for job in jobs)
    call = BatchCall(
        batch=uuid4(),
        model=jobs[0].model,
        digest=digest,
        job_ids=ids,
        time_limit_s=3600,
        verdict=verdict,
        is_last=is_last,
    )
    with patch.object(served_calls, "replica", replica, create=True):
        report = served_calls.run_batch(call)
    for job in jobs:
        job.refresh_from_db()
    return report


class DeviceNameTests(TransactionTestCase):
    def test_a_row_has_the_host_s_name_of_its_device(self) -> None:
        for name, found in (("cuda:7", "cuda:7"), ("cuda:4+cuda:5+cuda:6+cuda:7", "cuda:4+cuda:5+cuda:…")):
            job = Job(model="m", inputs="text")
            run_batch({"m": Answers({"text": 1})}, job, host_device=name)
            self.assertEqual(job.device, found)


class VerdictTests(TransactionTestCase):
    def test_a_model_that_is_not_loaded_is_an_error_before_the_claim(self) -> None:
        job = Job(model="gone", inputs="text")
        with self.assertRaises(errors.ModelUnavailable):
            run_batch({}, job)
        job.refresh_from_db()
        self.assertEqual((job.status, job.attempts), (Status.QUEUED, 0))

    def test_a_condemned_job_fails_also_where_its_model_is_not_loaded(self) -> None:
        job = Job(model="gone", inputs="text")
        report = run_batch({}, job, verdict=errors.Crashed.code)
        self.assertEqual((job.status, job.error_code), (Status.FAILED, errors.Crashed.code))
        self.assertEqual((report.errors, report.calls), ({job.pk: errors.Crashed.code}, 0))


class States(Answers):
    """Answers two numbers for each letter of a text."""

    numbers_a_token = 2

    def __init__(self) -> None:
        super().__init__({})
        self.computed: list[str] = []

    def count_tokens(self, inputs: list[Any], parameters: dict[str, Any]) -> list[int]:
        return [len(text) for text in inputs]

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        self.computed += inputs
        return [[0.5] * 2 * len(text) for text in inputs]


class TooLargeTests(TransactionTestCase):
    def test_an_answer_that_would_be_too_large_is_refused_before_it_is_computed(self) -> None:
        engine = States()
        small, large = Job(model="m", inputs="ab"), Job(model="m", inputs=["abcd", "efgh"], size=2, length=4)
        with patch.object(lengths, "MOST_ANSWERED", 15):
            report = run_batch({"m": engine}, small, large)
        self.assertEqual((small.status, small.output), (Status.SUCCEEDED, [0.5] * 4))
        self.assertEqual((report.size, small.batch_size), (1, 1))  # of what costs are learnt from
        self.assertEqual((large.status, large.error_code), (Status.FAILED, "invalid_input"))
        self.assertIn("about 1.07 times as large as may be", large.error_detail)
        self.assertEqual(engine.computed, ["ab"])

    def test_a_batch_of_nothing_else_computes_nothing(self) -> None:
        engine, large = States(), Job(model="m", inputs="abcdefgh", length=8)
        with patch.object(lengths, "MOST_ANSWERED", 15):
            report = run_batch({"m": engine}, large)
        self.assertEqual((large.error_code, report.calls, engine.computed), ("invalid_input", 0, []))


class NewerTests(TransactionTestCase):
    """Of jobs that were accepted by an entry which this worker has not taken over."""

    def setUp(self) -> None:
        file = Path(self.enterContext(tempfile.TemporaryDirectory())) / "models.toml"
        file.write_text('[m]\nengine = "x:Y"\n[m.parameters]\nk = { type = "integer" }\n')
        self.enterContext(self.settings(MODELS_FILE=file))
        self.file = file

    def run_with(self, parameters: dict[str, Any], *, is_last: bool = False) -> Job:
        job = Job(model="m", inputs="text", parameters=parameters)
        run_batch({"m": Answers({"text": "A"})}, job, is_last=is_last)
        return job

    def test_they_wait_until_it_has(self) -> None:
        with self.assertRaises(errors.NotYet):
            self.run_with({"k": 1})

    def test_they_fail_when_it_could_not_be_loaded(self) -> None:
        self.assertEqual(self.run_with({"k": 1}, is_last=True).error_code, errors.InvalidInput.code)

    def test_what_no_entry_allows_fails(self) -> None:
        self.assertEqual(self.run_with({"z": 1}).error_code, errors.InvalidInput.code)
        self.file.write_text("[m")
        self.assertEqual(self.run_with({"k": 1}).error_code, errors.InvalidInput.code)


class FullTextTests(TransactionTestCase):
    """Who made an answer knows whether it begins with its prompt: nobody guesses."""

    def text(self, answer: str, *, full_text: bool = False, **parameters: Any) -> str | None:
        spec = ModelSpec(
            name="m",
            engine="x:Y",
            task="text-generation",
            parameters={"return_full_text": ParameterSpec(type="boolean")},
        )
        engine = Answers({"A": {"generated_text": answer}})
        engine.spec, engine.full_text = spec, full_text
        job = Job(model="m", inputs="A", parameters=parameters)
        run_batch({"m": engine}, job)
        return extract_generated_text(job)

    def test_an_engine_of_one_s_own_answers_what_it_generated(self) -> None:
        self.assertEqual(self.text("All right"), "All right")

    def test_unless_the_full_text_is_requested(self) -> None:
        self.assertEqual(self.text("A is B", return_full_text=True), " is B")

    def test_a_pipeline_answers_the_full_text_unless_requested_otherwise(self) -> None:
        self.assertEqual(self.text("AA", full_text=True), "A")
        self.assertEqual(self.text("AA", full_text=True, return_full_text=False), "AA")


class AssignmentTests(TestCase):
    """What a child has loaded follows what it is told to have."""

    def setUp(self) -> None:
        self.replica = LoadedModels(worker=uuid4(), device="cpu", host_device="cpu")
        self.enterContext(patch.object(served_calls, "replica", self.replica, create=True))

    def spec(self, **values: Any) -> ModelSpec:
        return ModelSpec(name="m", engine="tests.echo:EchoEngine", **values)

    def engine(self, spec: ModelSpec) -> Engine:
        return self.replica.engines[spec.load_digest]

    def test_what_is_new_is_loaded_beside_what_stays_and_the_rest_unloaded(self) -> None:
        old, new = self.spec(), self.spec(revision="2")
        self.assertEqual(served_calls.apply_assignment((old,)).models, {old.digest: READY})
        before = self.engine(old)
        self.assertEqual(served_calls.apply_assignment((old, new)).models, {old.digest: READY, new.digest: READY})
        self.assertIs(self.engine(old), before)
        gone = weakref.ref(before)
        del before
        served_calls.apply_assignment((new,))
        self.assertEqual((list(self.replica.specs), len(self.replica.engines)), ([new.digest], 1))
        self.assertIsNone(gone())

    def test_a_change_that_needs_no_weights_keeps_the_engine(self) -> None:
        old, new = self.spec(), self.spec(max_batch_size=3)
        served_calls.apply_assignment((old,))
        before = self.engine(old)
        served_calls.apply_assignment((old, new))
        served_calls.apply_assignment((new,))
        self.assertIs(self.engine(new), before)

    def test_what_is_unloaded_leaves_no_weights_in_memory(self) -> None:
        import torch

        def weights() -> list[Any]:
            return [each for each in gc.get_objects() if type(each) is torch.nn.Parameter]

        folder = tiny_models.build("text-classification", Path(self.enterContext(tempfile.TemporaryDirectory())))
        spec = ModelSpec(name="m", task="text-classification", model=str(folder))
        of_others = {id(each) for each in weights()}
        self.assertEqual(served_calls.apply_assignment((spec,)).models, {spec.digest: READY})
        self.engine(spec).predict(["a cat"], {})
        loaded = [weakref.ref(each) for each in weights() if id(each) not in of_others]
        served_calls.apply_assignment(())
        self.assertTrue(loaded)
        self.assertFalse([each for each in loaded if each() is not None])

    def test_what_cannot_be_loaded_leaves_the_others(self) -> None:
        good, bad = self.spec(), self.spec(options={"nonsense": 1})
        report = served_calls.apply_assignment((good, bad))
        self.assertEqual(report.models[good.digest], READY)
        self.assertIn("nonsense", report.models[bad.digest])
        self.assertEqual(list(self.replica.specs), [good.digest])
        self.assertEqual(self.replica.shared.loading, 0)

    def test_after_each_load_that_another_follows_it_says_what_it_has(self) -> None:
        first, bad, second, last = (self.spec(revision=name) for name in "1234")
        bad = dataclasses.replace(bad, options={"nonsense": 1})
        reports: list[list[str]] = []
        report = self.replica.apply_assignment(
            (first, bad, second, last),
            lambda loaded: reports.append([key for key, why in loaded.models.items() if why == READY]),
        )
        self.assertEqual(reports, [[first.digest], [first.digest, second.digest]])
        self.assertEqual(len(report.models), 4)

    def test_what_ends_the_process_as_it_is_loaded_is_known_by_its_place(self) -> None:
        good, bad = self.spec(), self.spec(revision="2")
        served_calls.apply_assignment((good,))
        with patch("inference.engines.loading.load_engine", side_effect=SystemExit(1)), self.assertRaises(SystemExit):
            served_calls.apply_assignment((good, bad))
        self.assertEqual(self.replica.shared.loading, 2)


class RaisedTests(TestCase):
    """Whatever a call raises, the main process can read it: it would end of what it cannot."""

    def raised(self, error: BaseException) -> Any:
        with (
            patch.object(
                served_calls, "replica", LoadedModels(worker=uuid4(), device="cpu", host_device="cpu"), create=True
            ),
            patch.object(served_calls, "make_batch_run", side_effect=error),
        ):
            try:
                served_calls.run_batch(BatchCall(batch=uuid4(), model="m", digest="", job_ids=(), time_limit_s=3600))
            except BaseException:
                info = pickle.loads(pickle.dumps(ExceptionInfo()))
                return info, getattr(info.exception, "exc", info.exception)

    def test_an_error_that_cannot_be_unpickled_is_sent_in_words(self) -> None:
        for error in (NeedsMore("it", "panicked"), Unspeakable("x"), KeyError(NeedsMore("a", "b"))):
            with self.subTest(type(error).__name__):
                info, raised = self.raised(error)
                self.assertIs(type(raised), RemoteError)
                self.assertIn(type(error).__name__, str(raised))
                self.assertIn("run_batch", "".join(traceback.format_tb(info.tb)))
                self.assertIn(type(error).__name__, raised.raised)
                self.assertIn("in run_batch", raised.trace)

    def test_an_input_that_it_quotes_is_not_sent(self) -> None:
        self.assertNotIn("marked", str(self.raised(KeyError("marked"))[1]))

    def test_what_the_main_process_judges_stays_what_it_is(self) -> None:
        for error in (errors.NotYet("later"), errors.StoreUnavailable("away"), errors.DeviceFailed("x"), SystemExit(3)):
            self.assertIs(type(self.raised(error)[1]), type(error))


class RecordTests(TransactionTestCase):
    def run_with(self, answer: Any) -> Job:
        """One job with this answer, among others that succeed."""
        jobs = [Job(model="m", inputs=text) for text in ("a", "bad", "z")]
        report = run_batch({"m": Answers({"a": "A", "bad": answer, "z": ["Ω"]})}, *jobs)
        self.assertEqual([(job.status, job.output) for job in jobs[::2]], [("succeeded", "A"), ("succeeded", ["Ω"])])
        self.assertEqual(report.errors, {job.pk: job.error_code for job in jobs})
        return jobs[1]

    def test_text_that_no_database_stores_fails_alone(self) -> None:
        for answer in ("\0", ["\ud800"], {"a\0": 1}, [{"\udfff": 1}], "é\ud83d"):
            with self.subTest(answer):
                self.assertEqual(self.run_with(answer).error_code, errors.BadOutput.code)

    def test_an_answer_that_cannot_be_read_fails_alone(self) -> None:
        endless: list[Any] = []
        endless.append(endless)
        self.assertEqual(self.run_with(endless).error_code, errors.BadOutput.code)

    def test_an_answer_that_is_too_large_fails_alone(self) -> None:
        for answer in ([[0.5] * 1000] * 2001, "a" * 50_000_000, [{"a": [1] * 1000}] * 2001):
            job = self.run_with(answer)
            self.assertEqual(job.error_code, errors.BadOutput.code)
            self.assertIn("times as large as may be", job.error_detail)

    def test_an_answer_that_no_client_could_be_sent_fails_alone(self) -> None:
        deep: Any = 0.5
        for _ in range(300):
            deep = {"a": [deep]}
        for answer in (deep, 2**64, [1, -(2**63) - 1], [2**70] * 3):
            self.assertEqual(self.run_with(answer).error_code, errors.BadOutput.code)

    def test_what_can_be_kept_is_sent_as_it_was(self) -> None:
        deep: Any = 2**64 - 1
        for _ in range(json_values.MAX_DEPTH):
            deep = [deep]
        job = Job(model="m", inputs="text")
        run_batch({"m": Answers({"text": deep})}, job)
        self.assertEqual(job.output, deep)
        codec.write_json({"results": [{"output": job.output}]})

    def test_what_only_the_database_refuses_fails_alone(self) -> None:
        with patch.object(engine_calls, "convert_to_json", lambda answer: answer):
            self.assertEqual(self.run_with(10**5000).error_code, errors.BadOutput.code)

    def test_an_error_is_recorded_whatever_its_text_holds(self) -> None:
        job = self.run_with(errors.InvalidInput("\0 and \ud800"))
        self.assertEqual((job.error_code, job.error_detail), ("invalid_input", r"\u0000 and \ud800"))

    def test_the_text_of_an_error_is_bounded(self) -> None:
        for error in (errors.InvalidInput("a" * 100_000), errors.EngineError("\0" * 100_000)):
            job = self.run_with(error)
            text = job.error_raised or job.error_detail
            self.assertEqual((job.error_code, len(text), text[-1]), (error.code, 2000, "…"))


class SpareThreadsTests(TestCase):
    def setUp(self) -> None:
        self.own = torch.get_num_threads()
        self.addCleanup(torch.set_num_threads, self.own)
        self.enterContext(patch.dict(os.environ, OMP_NUM_THREADS=str(self.own)))

    def test_torch_has_them_for_a_call_and_then_its_own_again(self) -> None:
        with self.assertRaises(ZeroDivisionError), served_calls.use_spare_threads(2):
            self.assertEqual(torch.get_num_threads(), self.own + 2)
            raise ZeroDivisionError
        self.assertEqual(torch.get_num_threads(), self.own)

    def test_none_where_none_are_given_or_an_engine_has_set_their_number(self) -> None:
        with served_calls.use_spare_threads(0):
            self.assertEqual(torch.get_num_threads(), self.own)
        torch.set_num_threads(self.own + 1)
        with served_calls.use_spare_threads(2):
            self.assertEqual(torch.get_num_threads(), self.own + 1)
