"""What models take, as tables."""

import base64
from dataclasses import replace
from typing import Any

from django.test import SimpleTestCase

from inference.catalog.reader import parse_catalog
from inference.catalog.request_validation import check_row_count, validate_inputs, validate_parameters, validate_request
from inference.catalog.specs import ModelSpec
from inference.errors import InvalidInput

IMAGE = base64.b64encode(b"an image").decode()
MESSAGE = {"role": "user", "content": "hello"}
SENTENCES = {"source_sentence": "a", "sentences": ["b", "c"]}
RIGHT = {
    "text-classification": ("a", ["a", "b"], {"text": "a", "text_pair": "b"}, ""),
    "token-classification": ("a", ["a"]),
    "zero-shot-classification": ("a",),
    "fill-mask": ("a [MASK]",),
    "feature-extraction": ("a", ["a"]),
    "text-generation": ("a", [MESSAGE], ["a", "b"], [[MESSAGE], [MESSAGE]]),
    "sentence-similarity": (SENTENCES, [SENTENCES]),
    "image-classification": (IMAGE, [IMAGE, f"data:image/png;base64,{IMAGE}"]),
    "automatic-speech-recognition": (IMAGE,),
    "": (1, {"any": ["thing"]}, "a", [1, 2], False),
}
# (task, inputs, the field that must be named)
WRONG: tuple[tuple[str, Any, str], ...] = (
    ("text-classification", 7, "inputs"),
    ("text-classification", [], "inputs"),
    ("text-classification", ["a", None], "inputs[1]"),
    ("text-classification", {"text_pair": "b"}, "inputs.text"),
    ("text-classification", {"text": "a", "txt": "b"}, "inputs"),
    ("text-classification", {"text": 1}, "inputs.text"),
    ("token-classification", [["a"]], "inputs[0]"),
    ("feature-extraction", {"text": "a"}, "inputs"),
    ("text-generation", [{"role": "user"}], "inputs[0]"),
    ("text-generation", [[MESSAGE], []], "inputs[1]"),
    ("text-generation", "word " * 500, "inputs"),
    ("sentence-similarity", "a", "inputs"),
    ("sentence-similarity", {"source_sentence": "a"}, "inputs.sentences"),
    ("sentence-similarity", {"source_sentence": "a", "sentences": []}, "inputs.sentences"),
    ("sentence-similarity", {"source_sentence": "a", "sentences": ["b", 1]}, "inputs.sentences[1]"),
    ("image-classification", "https://example.com/cat.png", "inputs"),
    ("image-classification", "", "inputs"),
    ("image-classification", "é", "inputs"),
    ("automatic-speech-recognition", 1, "inputs"),
    ("", None, "inputs"),
    ("", [None], "inputs[0]"),
    ("", list(range(9)), "inputs"),
)
CATALOG = """
[m]
task = "text-generation"
model = "m"
[m.parameters]
count = { type = "integer", min = 1, max = 10 }
share = { type = "number", min = 0.0, max = 1.0, default = 0.5 }
mode = { type = "string", choices = ["a", "b"] }
names = { type = "array", items = "string", min_items = 1, max_items = 2 }
tag = { type = "string", min_length = 0, max_length = 3 }
flag = { type = "boolean" }
extra = { type = "object" }
needed = { type = "boolean", required = true }
"""


def spec(task: str) -> ModelSpec:
    return ModelSpec(name="m", task=task, max_batch_size=8, max_length=100)


class InputTests(SimpleTestCase):
    def test_what_clients_send_is_taken(self) -> None:
        for task, several in RIGHT.items():
            for inputs in several:
                with self.subTest(task=task, inputs=str(inputs)[:60]):
                    validate_inputs(spec(task), inputs)

    def test_what_is_wrong_is_refused_by_field(self) -> None:
        for task, inputs, field in WRONG:
            with self.subTest(task=task, inputs=str(inputs)[:60]), self.assertRaises(InvalidInput) as refused:
                validate_inputs(spec(task), inputs)
            self.assertEqual(refused.exception.field, field)

    def test_what_one_call_runs_has_a_bound_that_is_never_below_a_batch(self) -> None:
        check_row_count(spec("fill-mask"), 1024)
        check_row_count(replace(spec("fill-mask"), max_batch_size=2000), 2000)
        with self.assertRaisesRegex(InvalidInput, "make 1025 texts; at most 1024"):
            check_row_count(spec("fill-mask"), 1025)

    def test_a_list_has_the_length_of_a_batch_unless_it_may_be_longer(self) -> None:
        validate_inputs(spec("fill-mask"), ["a"] * 9, most=9)
        with self.assertRaisesRegex(InvalidInput, "at most 8 inputs make one job here, not 9: send them in several"):
            validate_inputs(spec("fill-mask"), ["a"] * 9)


class ParameterTests(SimpleTestCase):
    def setUp(self) -> None:
        self.spec = parse_catalog(CATALOG)["m"]

    def check(self, **given: Any) -> dict[str, Any]:
        return validate_parameters(self.spec, {"needed": True, **given})

    def test_defaults_are_filled_in(self) -> None:
        self.assertEqual(self.check(), {"share": 0.5, "needed": True})

    def test_bounds_hold_at_both_ends(self) -> None:
        for given in ({"count": 1}, {"count": 10}, {"share": 0}, {"share": 1.0}, {"names": ["a"]}, {"tag": "abc"},
                      {"mode": "a"}, {"flag": False}, {"extra": {"a": 1}}):  # fmt: skip
            with self.subTest(given):
                self.assertLessEqual(given.items(), self.check(**given).items())

    def test_a_whole_number_is_a_number_as_models_want_it(self) -> None:
        """`generate` refuses a temperature of 2, and takes one of 2.0."""
        own = parse_catalog(CATALOG.replace("default = 0.5", "default = 1"))["m"]
        for given in (self.check(share=1), validate_parameters(own, {"needed": True})):
            self.assertEqual(repr(given["share"]), "1.0")

    def test_what_is_wrong_is_refused_by_name(self) -> None:
        tried: list[dict[str, Any]] = [
            {"count": 0}, {"count": 11}, {"count": "7"}, {"count": 1.0}, {"count": True},
            {"share": 1.01}, {"share": float("nan")}, {"share": float("inf")}, {"share": "0.5"}, {"mode": "c"},
            {"names": []}, {"names": ["a", "b", "c"]}, {"names": "a"}, {"tag": "abcd"}, {"flag": 1}, {"extra": []},
        ]  # fmt: skip
        for given in tried:
            (name,) = given
            with self.subTest(given), self.assertRaises(InvalidInput) as refused:
                self.check(**given)
            self.assertEqual(refused.exception.field, f"parameters.{name}")

    def test_an_item_of_a_list_is_named(self) -> None:
        with self.assertRaises(InvalidInput) as refused:
            self.check(names=["a", 1])
        self.assertEqual(refused.exception.field, "parameters.names[1]")

    def test_the_error_of_a_misspelt_name_has_the_right_one(self) -> None:
        with self.assertRaisesRegex(InvalidInput, "parameters.cuont: unknown parameter; did you mean count?"):
            self.check(cuont=1)

    def test_what_is_required_must_be_there(self) -> None:
        with self.assertRaisesRegex(InvalidInput, "parameters.needed: is required"):
            validate_parameters(self.spec, {})

    def test_a_task_brings_its_parameters_and_the_model_s_own_come_first(self) -> None:
        self.assertEqual(self.check(max_new_tokens=5)["max_new_tokens"], 5)
        own = parse_catalog(
            '[m]\ntask = "fill-mask"\nmodel = "m"\n[m.parameters]\ntop_k = { type = "integer", max = 3 }\n'
        )["m"]
        with self.assertRaises(InvalidInput):
            validate_request(own, "a", {"top_k": 4})
        self.assertEqual(validate_request(own, "a", {"targets": ["b"]}), {"targets": ["b"]})
