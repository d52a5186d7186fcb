"""Values that ask for nothing are not given: the same answer, and the same batch, as without them."""

import re
from pathlib import Path
from typing import Any

from django.conf import settings
from django.test import SimpleTestCase

from inference.catalog import tasks
from inference.catalog.neutral_values import OPENAI, is_neutral
from inference.catalog.reader import parse_catalog
from inference.catalog.request_validation import validate_parameters
from inference.catalog.specs import ModelSpec
from inference.errors import InvalidInput

PAGE = Path(settings.BASE_DIR) / "docs" / "reference" / "api.md"
# What text-generation 0.7, LangChain's HuggingFaceEndpoint and huggingface_hub send to a model that generates.
TEXT_GENERATION: dict[str, Any] = {
    "best_of": None, "decoder_input_details": False, "details": True, "do_sample": False, "frequency_penalty": None,
    "grammar": None, "max_new_tokens": 2, "repetition_penalty": None, "return_full_text": False, "seed": None,
    "stop": [], "temperature": None, "top_k": None, "top_n_tokens": None, "top_p": None, "truncate": None,
    "typical_p": None, "watermark": False,
}  # fmt: skip
EFFECTIVE_PARAMETERS = {"details": True, "do_sample": False, "max_new_tokens": 2, "return_full_text": False}
VECTORS = '[m]\nengine = "inference.engines.embeddings:SentenceEmbeddings"\nmodel = "x"\n'
OWN = """
[m]
task = "text-generation"
engine = "a.b:C"
[m.parameters]
watermark = { type = "boolean" }
frequency_penalty = { type = "number", min = 0.5 }
temperature = { type = "number", min = 0.0 }
stop = { type = "array", items = "string", min_items = 1, max_items = 2 }
"""


def get_spec(task: str) -> ModelSpec:
    return parse_catalog(f'[m]\ntask = "{task}"\nmodel = "x"\n')["m"]


def required(spec: ModelSpec) -> dict[str, Any]:
    return {name: ["a"] for name, found in spec.parameters.items() if found.required}


class NeutralTests(SimpleTestCase):
    def assert_refused(self, spec: ModelSpec, name: str, value: Any) -> None:
        with self.assertRaises(InvalidInput) as refused:
            validate_parameters(spec, {**required(spec), name: value})
        self.assertEqual(refused.exception.field, f"parameters.{name}")

    def test_what_clients_of_text_generation_always_send_has_no_effect(self) -> None:
        self.assertEqual(validate_parameters(get_spec("text-generation"), TEXT_GENERATION), EFFECTIVE_PARAMETERS)

    def test_null_is_not_given_whatever_the_task_and_the_name(self) -> None:
        for task in tasks.list_pipeline_tasks():
            spec = get_spec(task)
            given = validate_parameters(spec, required(spec))
            for name in (*(spec.parameters.keys() - required(spec).keys()), "unheard_of"):
                with self.subTest(task=task, name=name):
                    self.assertEqual(validate_parameters(spec, {**required(spec), name: None}), given)

    def test_null_does_not_stand_for_what_is_required(self) -> None:
        self.assert_refused(get_spec("zero-shot-classification"), "candidate_labels", None)

    def test_the_values_of_the_table_are_not_given(self) -> None:
        for task in (*tasks.list_pipeline_tasks(), "sentence-similarity"):
            spec = get_spec(task)
            given = validate_parameters(spec, required(spec))
            for name, values in tasks.find_task(task).neutral.items():
                for value in values:
                    with self.subTest(task=task, name=name, value=value):
                        self.assertEqual(validate_parameters(spec, {**required(spec), name: value}), given)

    def test_a_request_for_no_times_of_sound_has_no_effect(self) -> None:
        spec = get_spec("automatic-speech-recognition")
        self.assertEqual(validate_parameters(spec, {"return_timestamps": False}), {})
        self.assertEqual(validate_parameters(spec, {"return_timestamps": True}), {"return_timestamps": True})

    def test_the_page_lists_them(self) -> None:
        (section,) = re.findall(r"### What asks for nothing\n(.*?)\n## ", PAGE.read_text(), re.DOTALL)
        tables = [task.neutral for task in tasks.TASKS.values()] + [each.neutral for each in tasks.BUILT_IN.values()]
        for name in {name for table in tables for name in table}:
            with self.subTest(name):
                self.assertIn(f"`{name}`", section)

    def test_values_with_an_effect_are_refused_by_name(self) -> None:
        spec = get_spec("text-generation")
        values: dict[str, Any] = {
            "watermark": True, "best_of": 2, "frequency_penalty": 2.1, "presence_penalty": False, "n": True,
            "logprobs": 21, "top_n_tokens": 1, "decoder_input_details": True,
        }  # fmt: skip
        for name, value in values.items():
            with self.subTest(name):
                self.assert_refused(spec, name, value)
        self.assert_refused(get_spec("feature-extraction"), "truncate", False)
        self.assert_refused(get_spec("feature-extraction"), "normalize", True)

    def test_what_is_not_served_is_refused_as_such_and_not_as_a_slip(self) -> None:
        spec = get_spec("text-generation")
        for name, words in (("top_n_tokens", "send 0."), ("best_of", "send 1."), ("watermark", "send false.")):
            with self.assertRaisesRegex(
                InvalidInput, f"parameters.{name}: is not served here; leave it out, or {words}"
            ):
                validate_parameters(spec, {name: 2})

    def test_what_clients_of_openai_s_interface_send_by_default_has_no_effect(self) -> None:
        nothing: dict[str, Any] = {
            "add_generation_prompt": True, "continue_final_message": False, "echo": False, "frequency_penalty": 0.0,
            "logprobs": False, "min_p": 0, "n": 1, "presence_penalty": 0, "skip_special_tokens": True,
            "tool_choice": "auto", "top_logprobs": 0, "return_full_text": False, "use_beam_search": False,
        }  # fmt: skip
        something: dict[str, Any] = {
            "add_generation_prompt": False, "continue_final_message": True, "echo": True, "frequency_penalty": 1,
            "logprobs": True, "min_p": 1, "n": 2, "presence_penalty": 1, "skip_special_tokens": False,
            "tool_choice": "required", "top_logprobs": 1, "return_full_text": True, "use_beam_search": True,
        }  # fmt: skip
        for table, is_nothing in ((nothing, True), (something, False)):
            for name, value in table.items():
                with self.subTest(name, value=value):
                    self.assertEqual(is_neutral(OPENAI, name, value), is_nothing)

    def test_what_the_model_s_own_table_takes_is_given_to_it(self) -> None:
        own = parse_catalog(OWN)["m"]
        self.assertEqual(
            validate_parameters(own, {"watermark": False, "temperature": 0}), {"watermark": False, "temperature": 0.0}
        )
        self.assertEqual(validate_parameters(own, {"frequency_penalty": 0, "stop": []}), {})
        self.assert_refused(own, "frequency_penalty", 0.1)

    def test_vectors_of_a_table_without_a_task(self) -> None:
        spec = parse_catalog(VECTORS)["m"]
        self.assertEqual(spec.task, "feature-extraction")
        for given in ({"normalize": True}, {"truncate": True}, {"encoding_format": "float"}, {"prompt_name": None}):
            with self.subTest(given):
                self.assertEqual(validate_parameters(spec, given), {})
        for name in ("normalize", "truncate"):
            self.assertEqual(validate_parameters(spec, {name: False}), {name: False})


class TranslatedTests(SimpleTestCase):
    def test_sampling_in_other_words(self) -> None:
        spec = get_spec("text-generation")
        table: list[tuple[dict[str, Any], dict[str, Any]]] = [
            ({"temperature": 0.001}, {"do_sample": False}),
            ({"temperature": 0, "do_sample": True}, {"do_sample": False}),
            ({"temperature": 0.01}, {"temperature": 0.01}),
            ({"top_p": 0, "temperature": 0.5}, {"do_sample": False, "temperature": 0.5}),
            ({"top_k": -1}, {"top_k": 0}),
            ({"seed": -1}, {"seed": 2**63 - 1}),
            ({"seed": 2**63 + 5}, {"seed": 5}),
            ({"seed": 7}, {"seed": 7}),
        ]
        for given, expected in table:
            with self.subTest(given):
                self.assertEqual(validate_parameters(spec, given), expected)
        for given in ({"temperature": -1}, {"temperature": False}, {"seed": 1.5}, {"top_k": -2}, {"seed": True}):
            with self.subTest(given), self.assertRaises(InvalidInput):
                validate_parameters(spec, given)

    def test_labels_as_one_string(self) -> None:
        for task in ("zero-shot-classification", "zero-shot-image-classification", "zero-shot-audio-classification"):
            with self.subTest(task):
                spec = get_spec(task)
                labels = validate_parameters(spec, {"candidate_labels": "a cat, a dog,"})["candidate_labels"]
                self.assertEqual(labels, ["a cat", "a dog"])
                with self.assertRaises(InvalidInput):
                    validate_parameters(spec, {"candidate_labels": " , "})
