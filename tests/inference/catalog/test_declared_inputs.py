"""What an engine of one's own takes is declared, and what it raises is for its operator."""

from typing import Any

from django.test import SimpleTestCase, override_settings

from inference.catalog.reader import parse_catalog
from inference.catalog.request_validation import validate_request
from inference.catalog.specs import CatalogError, ModelSpec
from inference.engines.loading import FunctionEngine
from inference.engines.runtime.engine_calls import run_engine_with_isolation
from inference.errors import UNREADABLE, InvalidInput
from inference.models import OPERATOR_HINT, Job

CATALOG = '[shout]\nengine = "my:shout"\ninput = { type = "string", max_length = 5 }\n'


def shout(inputs: list[str], parameters: dict[str, Any]) -> list[str]:
    return [text.upper() for text in inputs]


class DeclaredInputTests(SimpleTestCase):
    def setUp(self) -> None:
        self.spec = parse_catalog(CATALOG)["shout"]

    def test_what_is_not_declared_is_refused_before_it_is_stored(self) -> None:
        self.assertEqual(validate_request(self.spec, ["a", "bcdef"], {}), {})
        for inputs, field in ((1, "inputs"), ({"text": "a"}, "inputs"), (["a", 1], "inputs[1]"), ("abcdef", "inputs")):
            with self.subTest(inputs), self.assertRaises(InvalidInput) as refused:
                validate_request(self.spec, inputs, {})
            self.assertEqual(refused.exception.field, field)

    def test_a_row_that_somebody_else_wrote_never_reaches_the_function(self) -> None:
        engine = FunctionEngine(self.spec, shout)
        wrong, right = run_engine_with_isolation(engine, [1, "a"], {}).outcomes
        self.assertIsInstance(wrong, InvalidInput)
        self.assertEqual(right, "A")
        self.assertEqual(run_engine_with_isolation(engine, [1], {}).calls, 0)

    def test_a_wrong_declaration_is_refused_with_its_line(self) -> None:
        wrong = {
            '"string"': "type", "{ type = 'text' }": "type", "{ type = 'string', min = 1 }": "min",
            "{ type = 'string', default = 'a' }": "no default",
        }  # fmt: skip
        for table, words in wrong.items():
            with self.subTest(table), self.assertRaisesRegex(CatalogError, f"line 3: .*{words}"):
                parse_catalog(f'[shout]\nengine = "my:shout"\ninput = {table}\n')

    def test_without_a_declaration_anything_goes(self) -> None:
        self.assertEqual(validate_request(ModelSpec(name="m", engine="my:shout"), {"any": [1]}, {}), {})


class PublicDetailTests(SimpleTestCase):
    def test_exceptions_are_for_the_operator_unless_the_setting_says_otherwise(self) -> None:
        for code in ("engine_error", "out_of_memory"):
            job = Job(error_code=code, error_detail="AttributeError: 'int' object has no attribute 'upper'")
            with override_settings(ENGINE_ERRORS="redacted"):
                self.assertNotIn("AttributeError", job.public_detail)
            with override_settings(ENGINE_ERRORS="full"):
                self.assertEqual(job.public_detail, job.error_detail)

    def test_what_was_raised_is_kept_apart_from_what_clients_read_whatever_the_code(self) -> None:
        for code in ("engine_error", "bad_output", "invalid_input", "anything"):
            job = Job(error_code=code, error_detail="inputs[3]: It failed.", error_raised="KeyError: 'secret'")
            with override_settings(ENGINE_ERRORS="redacted"):
                self.assertEqual(job.public_detail, f"{job.error_detail} {OPERATOR_HINT}")
            with override_settings(ENGINE_ERRORS="full"):
                self.assertEqual(job.public_detail, "inputs[3]: It failed. KeyError: 'secret'")

    @override_settings(ENGINE_ERRORS="redacted")
    def test_of_a_job_that_an_earlier_version_ended_clients_read_what_is_known_to_be_ours(self) -> None:
        for code, ours in (
            ("bad_output", "The engine's answer could not be read."),
            ("invalid_input", f"inputs[3]: {UNREADABLE}"),
        ):
            job = Job(error_code=code, error_detail=f"{ours} KeyError: 'secret'")
            self.assertEqual(job.public_detail, ours)

    @override_settings(ENGINE_ERRORS="redacted")
    def test_what_is_wrong_with_an_input_is_for_its_client(self) -> None:
        self.assertEqual(Job(error_code="invalid_input", error_detail="Send a text.").public_detail, "Send a text.")
