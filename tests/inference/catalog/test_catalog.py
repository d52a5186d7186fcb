"""models.toml: what it may say, and that a bad file is refused by line with the cure."""

import tempfile
from pathlib import Path

from django.conf import settings
from django.test import SimpleTestCase

from inference.catalog import reader, specs
from inference.catalog.reader import parse_catalog
from inference.catalog.specs import CatalogError

GOOD = """
[sentiment]
task = "text-classification"
model = "some/model"
revision = "714eb0f"
max_batch_size = 8
max_wait_ms = 2.5
[sentiment.parameters]
top_k = { type = "integer", min = 1, max = 10, default = 1 }
[sentiment.options]
truncation = true

[echo]
engine = "tests.echo:Echo"
"""

RANKER = '[a]\ntask = "text-ranking"\nmodel = "m"\n'
RANKED = f'{RANKER}default_for = ["rerank"]\n'
LABELS = '[a]\ntask = "text-classification"\nmodel = "m"\n'
PARAMETERS = '[a]\ntask = "t"\nmodel = "m"\n[a.parameters]\n'
BACKEND = '[a]\ntask = "fill-mask"\nmodel = "m"\nbackend = "openvino"\n'

# (what is wrong, the file, the line that must be named, what the message must hold)
BAD = (
    ("no TOML", "[a]\ntask = \n", 2, "not valid TOML"),
    ("empty", "# nothing\n", None, "no models"),
    ("no table", 'task = "fill-mask"\n', 1, "not in a table"),
    ("name", '["Bad Name"]\ntask = "fill-mask"\nmodel = "a/b"\n', 1, "part of URLs"),
    ("name with a blank", '[a]\ntask = "fill-mask"\nmodel = "a/b"\n["my model"]\ntask = "x"\n', 4, "part of URLs"),
    ("key of a name with a dot", '[b]\nengine = "x:Y"\n["a.b"]\nengine = "x:Y"\ntime_limit_s = 0\n', 5, "time_limit_s"),
    ("parameter of one", '["a.b"]\nengine = "x:Y"\n["a.b".parameters.k]\ntype = "z"\n', 3, "k"),
    ("typo", '[a]\ntask = "fill-mask"\nmodel = "a/b"\nmax_batch_sise = 3\n', 4, "did you mean max_batch_size?"),
    ("unknown key", '[a]\ntask = "fill-mask"\nmodel = "a/b"\nzzz = 3\n', 4, "known keys are"),
    ("no task", '[a]\nmodel = "a/b"\n', 1, "needs task"),
    ("no model", '\n\n[a]\ntask = "fill-mask"\n', 3, "needs model"),
    ("zero batch", '[a]\ntask = "t"\nmodel = "m"\nmax_batch_size = 0\n', 4, "a whole number from 1 to 4096"),
    ("fraction", '[a]\ntask = "t"\nmodel = "m"\nmax_batch_size = 1.5\n', 4, "a whole number"),
    ("boolean", '[a]\ntask = "t"\nmodel = "m"\nmax_queued = true\n', 4, "a whole number"),
    ("wait", '[a]\ntask = "t"\nmodel = "m"\nmax_wait_ms = "5"\n', 4, "a number from 0 to 60000"),
    ("dtype", '[a]\ntask = "t"\nmodel = "m"\ndtype = "fp16"\n', 4, "one of auto, float32, tf32, bfloat16, float16"),
    ("backend", '[a]\ntask = "t"\nmodel = "m"\nbackend = "onnx"\n', 4, "must be one of torch, openvino, not 'onnx'"),
    ("precision", BACKEND + 'precision = "fp16"\n', 5, "one of float32, bfloat16, int8"),
    ("int8, but torch", '[a]\ntask = "t"\nmodel = "m"\nprecision = "int8"\n', 4, 'add backend = "openvino"'),
    ("two precisions", '[a]\ntask = "t"\nmodel = "m"\nprecision = "float32"\ndtype = "float32"\n', 5, "leave one"),
    ("dtype of a backend", BACKEND + 'dtype = "bfloat16"\n', 5, 'say precision = "…"'),
    ("tolerance of torch", '[a]\ntask = "t"\nmodel = "m"\ntolerance = 0.1\n', 4, 'or backend = "openvino"'),
    ("tolerance", BACKEND + "tolerance = 2\n", 5, "a number from 0 to 1"),
    ("backend of a task", '[a]\ntask = "text-generation"\nmodel = "m"\nbackend = "openvino"\n', 4, "leave it out for"),
    ("load", '[a]\ntask = "t"\nmodel = "m"\nload = "late"\n', 4, "load must be one of eager, lazy, not 'late'"),
    ("idle", '[a]\ntask = "t"\nmodel = "m"\nload = "lazy"\nidle_unload_s = 0\n', 5, "a number from 1 to 604800"),
    ("idle, but eager", '[a]\ntask = "t"\nmodel = "m"\nidle_unload_s = 60\n', 4, 'of models with load = "lazy"'),
    ("default", RANKER + 'default_for = "rerank"\n', 4, 'a list of one or more of "embed", "predict", "rerank"'),
    ("no kind", RANKER + 'default_for = ["rank"]\n', 4, 'a list of one or more of "embed", "predict", "rerank"'),
    ("no kind of its", RANKER + 'default_for = ["embed"]\n', 4, 'does not answer: it answers "rerank"'),
    ("harmless labels", LABELS + 'options = { harmless_labels = "a" }\n', 4, 'a list of labels such as ["neutral"]'),
    ("threshold", LABELS + "options = { flag_threshold = 2 }\n", 4, "flag_threshold must be a number from 0 to 1"),
    ("no labels", LABELS + "options = { flag_threshold = 0.1 }\n", 4, "needs options.harmless_labels"),
    ("labels of no task", RANKER + "options = { harmless_labels = [] }\n", 4, "is of models that classify texts"),
    ("does not moderate", LABELS + 'default_for = ["moderate"]\n', 4, 'does not answer: it answers "predict"'),
    ("two defaults", f'{RANKED}{RANKED.replace("[a]", "[b]")}', 8, 'has "rerank", as has that of a'),
    ("engine", '[a]\nengine = "nonsense"\n', 2, "package.module:Class"),
    ("not a string", "[a]\ntask = 3\n", 2, "must be a string in quotes"),
    ("options", '[a]\ntask = "t"\nmodel = "m"\noptions = 3\n', 4, "options must be a table"),
    ("too long", '[a]\ntask = "t"\nmodel = "m"\nmax_length = 512\nmax_batch_tokens = 128\n', 4, "fits no batch"),
    ("second table", '[a]\ntask = "t"\nmodel = "m"\n[b]\ntask = "t"\nmodel = "m"\ndtype = "x"\n', 7, "dtype must be"),
    ("parameter type", PARAMETERS + 'k = { type = "int" }\n', 5, "needs a type"),
    ("parameter key", PARAMETERS + 'k = { type = "string", least = 1 }\n', 5, "known keys"),
    ("bounds", PARAMETERS + 'k = { type = "integer", min = 5, max = 1 }\n', 5, "above max"),
    ("size", PARAMETERS + 'k = { type = "string", max_length = -1 }\n', 5, "whole number from 0"),
    ("items", PARAMETERS + 'k = { type = "array", items = "text" }\n', 5, "items must be one of"),
    ("choices", PARAMETERS + 'k = { type = "string", choices = "a" }\n', 5, "a list of what is allowed"),
    ("a default out of bounds", PARAMETERS + 'k = { type = "integer", max = 3, default = 5 }\n', 5, "not allowed"),
    ("bound", PARAMETERS + 'k = { type = "string", min = 5 }\n', 5, "is for integer"),
    ("default", '[a]\ntask = "t"\nmodel = "m"\n[a.parameters.k]\ntype = "integer"\ndefault = "x"\n', 4, "not of type"),
)  # fmt: skip


class TestGoodFiles(SimpleTestCase):
    def test_a_table_becomes_a_spec(self) -> None:
        spec = parse_catalog(GOOD)["sentiment"]
        self.assertEqual((spec.name, spec.queue, spec.max_batch_size), ("sentiment", "inference.sentiment", 8))
        self.assertEqual(spec.engine, specs.TRANSFORMERS_ENGINE)
        self.assertEqual((spec.parameters["top_k"].min, spec.parameters["top_k"].default), (1, 1))
        self.assertEqual(spec.options, {"truncation": True})

    def test_what_is_not_said_has_a_default(self) -> None:
        spec = parse_catalog(GOOD)["echo"]
        self.assertEqual((spec.max_batch_size, spec.max_wait_ms, spec.max_queued, spec.dtype), (32, 0, 1000, "auto"))

    def test_torch_holds_weights_in_its_precision_and_those_of_another_backend_in_float32(self) -> None:
        for table, dtype in (
            ("", "auto"),
            ('dtype = "bfloat16"', "bfloat16"),
            ('precision = "bfloat16"', "bfloat16"),
            ('backend = "openvino"\nprecision = "int8"', "float32"),
        ):
            spec = parse_catalog(f'[a]\ntask = "fill-mask"\nmodel = "m"\n{table}\n')["a"]
            self.assertEqual(spec.weights_dtype, dtype)

    def test_on_a_gpu_the_limits_are_larger_where_its_table_sets_none(self) -> None:
        for table, limits in (
            ("", (512, 32_768)),
            ("max_batch_size = 32\n", (32, 32_768)),
            ("max_batch_tokens = 8192\n", (512, 8192)),
        ):
            spec = parse_catalog(f'[a]\ntask = "fill-mask"\nmodel = "m"\nrevision = "1"\n{table}')["a"]
            there = spec.with_gpu_limits()
            self.assertEqual((there.max_batch_size, there.max_batch_tokens), limits)
            self.assertEqual((there.digest, there.load_digest), (spec.digest, spec.load_digest))
        files = parse_catalog('[a]\ntask = "image-classification"\nmodel = "m"\n')["a"]
        self.assertEqual(files.with_gpu_limits().max_batch_size, 32)

    def test_to_set_a_limit_that_is_the_default_is_a_change(self) -> None:
        plain, stated = (parse_catalog(f'[a]\nengine = "x:Y"\n{line}')["a"] for line in ("", "max_batch_size = 32\n"))
        self.assertNotEqual(plain.digest, stated.digest)
        self.assertEqual(plain.load_digest, stated.load_digest)

    def test_a_model_is_loaded_at_once_unless_it_is_lazy(self) -> None:
        self.assertFalse(parse_catalog(GOOD)["echo"].is_lazy)
        lazy = parse_catalog(f'{GOOD}load = "lazy"\nidle_unload_s = 0.5e3\n')["echo"]
        self.assertEqual((lazy.is_lazy, lazy.idle_unload_s), (True, 500))

    def test_the_file_that_ships_is_good(self) -> None:
        self.assertIn("embeddings", reader.load_catalog(settings.BASE_DIR / "models.toml"))

    def test_what_the_shipped_file_has_commented_out_is_good_once_uncommented(self) -> None:
        text = (settings.BASE_DIR / "models.toml").read_text()
        commented = text[text.index("# [sentiment]") :]
        names = parse_catalog("".join(line.removeprefix("# ").removeprefix("#") for line in commented.splitlines(True)))
        self.assertGreaterEqual(set(names), {"sentiment", "fill", "entities"})


class TestBadFiles(SimpleTestCase):
    def test_each_mistake_is_refused_with_its_line_and_the_cure(self) -> None:
        for what, text, line, cure in BAD:
            with self.subTest(what), self.assertRaises(CatalogError) as caught:
                parse_catalog(text, "here.toml")
            message = str(caught.exception)
            self.assertTrue(message.startswith("here.toml"), message)
            self.assertIn(cure, message)
            if line:
                self.assertIn(f"line {line}", message, what)

    def test_a_missing_file_is_named_with_the_variable_that_sets_it(self) -> None:
        with tempfile.TemporaryDirectory() as folder, self.assertRaises(CatalogError) as caught:
            reader.load_catalog(Path(folder) / "none.toml")
        self.assertIn("none.toml", str(caught.exception))
        self.assertIn("MODELS_FILE", str(caught.exception))


class TestDigests(SimpleTestCase):
    def test_the_order_of_parameters_does_not_matter(self) -> None:
        one, other = {"top_k": 1, "z": [1]}, {"z": [1], "top_k": 1}
        self.assertEqual(specs.digest_parameters(one), specs.digest_parameters(other))

    def test_it_is_short_however_long_the_parameters_are(self) -> None:
        digests = {specs.digest_parameters({"prefix": letter * 10**6}) for letter in "ab"}
        self.assertEqual([len(digest) for digest in digests], [32, 32])

    def test_other_parameters_are_another_group(self) -> None:
        self.assertNotEqual(specs.digest_parameters({"top_k": 1}), specs.digest_parameters({"top_k": 2}))
        self.assertEqual(specs.digest_parameters({}), "")
