"""A new pipeline task is an entry of the table, and its feed: all that is known of it follows from there."""

import base64
import subprocess
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from django.conf import settings
from django.test import SimpleTestCase

from api.answers import huggingface
from api.requests.dialects.huggingface import read_request
from inference import checks
from inference.catalog import input_checks, reader, specs, tasks
from inference.catalog.parameters import ParameterSpec
from inference.catalog.request_validation import validate_request
from inference.catalog.sizes import length_estimates, lengths
from inference.catalog.tasks import AnswerShape, Task
from inference.engines.base import Engine
from inference.errors import InvalidInput
from tools.tuning import measurements, samples

READING = Task(
    name="lip-reading",
    aliases=("watching",),
    check=input_checks.check_media,
    unit=length_estimates.estimate_frames,
    rows=lambda item, parameters: ([item], parameters["speakers"]),
    parameters={"speakers": ParameterSpec(type="integer", min=1, max=3, default=2)},
    parameters_at_root=True,
    shape=AnswerShape.PAIRS,
    example={"inputs": "a film"},
    measured_with={"speakers": 1},
)
FILM = base64.b64encode(bytes(32_000)).decode()


class Echo(Engine):
    def load(self, device: str) -> None:
        pass

    def predict(self, inputs: Sequence[Any], parameters: dict[str, Any]) -> list[Any]:
        return list(inputs)


class MadeUpTaskTests(SimpleTestCase):
    def setUp(self) -> None:
        change = patch.dict(tasks.TASKS, tasks.index_tasks([READING]))
        change.start()
        self.addCleanup(change.stop)
        self.specs = reader.parse_catalog(
            '[a]\ntask = "lip-reading"\nmodel = "m"\n[b]\ntask = "watching"\nmodel = "m"\n'
        )

    def test_inputs_and_parameters_are_checked(self) -> None:
        for spec in self.specs.values():
            self.assertEqual(validate_request(spec, FILM, {}), {"speakers": 2})
            for value, given in ((7, {}), ("no base64", {}), (FILM, {"speakers": 4}), (FILM, {"top_k": 1})):
                with self.subTest(spec=spec.name, value=value, given=given), self.assertRaises(InvalidInput):
                    validate_request(spec, value, given)

    def test_lengths_are_in_its_unit_and_rows_as_it_says(self) -> None:
        for spec in self.specs.values():
            self.assertEqual(lengths.measure_inputs(spec, [FILM, FILM], {"speakers": 3}), (6, 100))

    def test_clients_send_bytes_and_parameters_at_the_root_and_get_its_shape(self) -> None:
        for spec in self.specs.values():
            call = read_request(spec, b"film", "video/mp4")
            self.assertEqual(call.submission.inputs, base64.b64encode(b"film").decode())
            call = read_request(spec, b'{"inputs": "film", "speakers": 1}', "application/json")
            self.assertEqual(call.submission.parameters, {"speakers": 1})
            answer = huggingface.shape_output(spec.task, {"labels": ["a"], "scores": [1.0]}, size=1)
            self.assertEqual(answer, [{"label": "a", "score": 1.0}])

    def test_it_is_served_measured_and_shown(self) -> None:
        self.assertLessEqual({"lip-reading", "watching"}, set(tasks.list_pipeline_tasks()))
        self.assertEqual([checks.find_task_problem(spec) for spec in self.specs.values()], ["", ""])
        for spec in self.specs.values():
            self.assertEqual(tasks.find_task(spec.task).example, {"inputs": "a film"})
            self.assertEqual(measurements.choose_lengths(spec, []), [50, 250, 1500])
            input_checks.check_media("inputs", samples.make_sample(spec, Echo(spec), 50, []))


class ShapeTests(SimpleTestCase):
    def test_segments_without_a_score_have_one_that_clients_read(self) -> None:
        segments: list[dict[str, Any]] = [
            {"label": "sky", "score": None, "mask": "x"},
            {"label": "sea", "score": 0.5, "mask": "y"},
        ]
        shown = huggingface.shape_output("image-segmentation", [segments, segments], size=2)
        self.assertEqual([each["score"] for each in shown[0]], [1.0, 0.5])
        self.assertEqual(shown[0], huggingface.shape_output("image-segmentation", segments, size=1))
        self.assertIsNone(segments[0]["score"])


class TableTests(SimpleTestCase):
    def test_no_other_file_names_a_task(self) -> None:
        """But for the feeds, and the shortcuts and answers that are of one task by nature."""
        names = "|".join(sorted({task.name for task in tasks.TASKS.values() if task.is_pipeline}))
        command = ["grep", "-rlE", f'"({names})"', "inference", "api", "--include=*.py"]
        found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=settings.BASE_DIR)
        self.assertEqual(
            set(found.stdout.split()) - {f"inference/engines/{name}.py" for name in OF_ONE_TASK},
            {"inference/catalog/tasks.py", "inference/engines/inputs/feeds.py"},
        )

    def test_of_an_engine_of_one_s_own_nothing_is_known(self) -> None:
        validate_request(specs.ModelSpec(name="m", task="summarize"), {"any": ["thing"]}, {})
        self.assertIsNone(tasks.find_task("summarize").example)
        self.assertTrue(tasks.find_task("").example)


OF_ONE_TASK = ("runtime/parity", "sentences/folder", "accelerate/installation", "accelerate/batch_answers")
