"""/openai/v1, and the same calls below /v1/models/NAME: what is asked of the model, and how its answer is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

from django.test import SimpleTestCase, override_settings

from api.answers.completions import completion as shapes
from api.answers.completions.logprobs import list_scores_with_prompt, make_text_logprobs, measure_prompt
from api.requests.dialects.base import PRIORITIES_BY_TIER
from api.requests.dialects.generation import completions
from inference.catalog.input_checks import TOKENS
from inference.catalog.lookup import get_spec
from inference.catalog.reader import parse_catalog
from inference.catalog.request_validation import validate_inputs, validate_parameters
from inference.catalog.sizes.lengths import CHAT_TOKENS, measure_inputs
from inference.catalog.specs import ModelSpec
from inference.errors import InvalidInput, UnknownModel
from inference.models import Job, Status
from inference.submission import jobs
from inference.submission.submissions import Submission
from tests.api.base import ApiTestCase

MODELS_FILE = Path(__file__).with_name("generating.toml")
CHAT, TEXT, MODELS = "/openai/v1/chat/completions", "/openai/v1/completions", "/openai/v1/models"
HELLO = [{"role": "user", "content": "hello"}]
OWN = {"return_full_text": False, "details": True}


PIPELINE = parse_catalog('[m]\ntask = "text-generation"\nmodel = "a/b"\n')["m"]


def call(name: str, arguments: str) -> dict[str, Any]:
    """Return a call of a tool as OpenAI's clients send it back."""
    return {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": arguments}}


def generated(value: Any, parameters: dict[str, Any]) -> Any:
    """As a model answers that generates three tokens, and ends."""
    prompt = value if isinstance(value, str) else "|".join(f"{each['role']}:{each['content']}" for each in value)
    details = {"finish_reason": parameters.get("style") or "eos_token", "prompt_tokens": 2, "generated_tokens": 3}
    before = prompt if parameters.get("return_full_text") else ""
    return [{"generated_text": f"{before}<{prompt}>", "details": details}]


def answering(answer: Any, value: Any, parameters: dict[str, Any]) -> Any:
    return answer


@override_settings(MODELS_FILE=MODELS_FILE)
class ReadTests(SimpleTestCase):
    """What becomes of each field."""

    def parameters(self, **fields: Any) -> dict[str, Any]:
        request = completions.read_chat({"model": "prompts", "messages": HELLO, **fields})
        parameters = dict(request.submission.parameters)
        self.assertEqual({name: parameters.pop(name) for name in OWN}, OWN)
        if not any(fields.get(name) for name in completions.LIMITS):
            self.assertEqual(parameters.pop("max_new_tokens"), CHAT_TOKENS)
        return parameters

    def refused(self, document: Any, read: Any = completions.read_chat) -> InvalidInput:
        with self.assertRaises(InvalidInput) as caught:
            read(document)
        return caught.exception

    def test_fields_become_parameters(self) -> None:
        table: list[tuple[dict[str, Any], dict[str, Any]]] = [
            ({}, {}),
            ({"max_tokens": 5}, {"max_new_tokens": 5}),
            ({"max_completion_tokens": 5}, {"max_new_tokens": 5}),
            ({"temperature": 0.5}, {"do_sample": True, "temperature": 0.5}),
            ({"temperature": 0}, {"do_sample": False}),
            ({"temperature": 0.0, "top_p": 0.5}, {"do_sample": False, "top_p": 0.5}),
            ({"temperature": 0.5, "top_p": 0}, {"do_sample": False, "temperature": 0.5}),
            ({"top_p": 0.5}, {"do_sample": True, "top_p": 0.5}),
            ({"stop": "\n"}, {"stop": ["\n"]}),
            ({"stop": ["a", "b"]}, {"stop": ["a", "b"]}),
            ({"stop": []}, {}),
            ({"seed": 7}, {"seed": 7}),
            ({"style": "loud", "repetition_penalty": 2.0}, {"style": "loud", "repetition_penalty": 2.0}),
            ({"max_tokens": None, "stop": None, "tools": None, "nonsense": None}, {}),
        ]
        for fields, expected in table:
            with self.subTest(fields):
                self.assertEqual(self.parameters(**fields), expected)

    def test_what_ends_a_chat_without_a_limit_is_said_by_the_model_s_table(self) -> None:
        for table, expected in (
            ("", CHAT_TOKENS),
            ("default = 2000", None),  # which the job gets as any other default
            ("max = 100", 100),
            ("max = 5000", CHAT_TOKENS),
        ):
            with self.subTest(table):
                comma = "," if table else ""
                limit = f'max_new_tokens = {{ type = "integer"{comma} {table} }}'
                spec = parse_catalog(f'[m]\ntask = "text-generation"\nengine = "a:B"\n[m.parameters]\n{limit}\n')["m"]
                submission = completions.read_chat({"messages": HELLO}, spec).submission
                self.assertEqual(submission.parameters.get("max_new_tokens"), expected)
                validated = validate_parameters(spec, submission.parameters)
                self.assertEqual(validated["max_new_tokens"], expected or 2000)

    def test_a_text_without_a_limit_has_the_model_s_own(self) -> None:
        submission = completions.read_text_completion({"model": "prompts", "prompt": "hello"}).submission
        self.assertEqual(submission.parameters, OWN)

    def test_any_number_of_tokens_may_be_requested(self) -> None:
        for most in (4096, 2**62):
            validated = validate_parameters(get_spec("prompts"), self.parameters(max_tokens=most))
            self.assertEqual(validated["max_new_tokens"], most)

    def test_what_would_not_change_the_answer_is_ignored(self) -> None:
        harmless: dict[str, Any] = {
            "user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "n": 1, "logprobs": False,
            "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "tools": [], "tool_choice": "none",
            "response_format": {"type": "text"}, "modalities": ["text"], "parallel_tool_calls": True,
            "prompt_cache_key": "x", "safety_identifier": "x", "prediction": {"type": "content", "content": "x"},
            "stream_options": {"include_usage": True, "include_obfuscation": True, "other": None},
            "reasoning_effort": "none", "verbosity": "medium", "max_retries": 0, "min_p": 0.0, "min_tokens": 0,
            "ignore_eos": False, "skip_special_tokens": True, "stop_token_ids": [], "use_beam_search": False,
            "chat_template_kwargs": {}, "watermark": False, "stop": "",
        }  # fmt: skip
        self.assertEqual(self.parameters(**harmless), {})

    def test_penalties_and_biases_are_the_model_s(self) -> None:
        requested = {"frequency_penalty": 0.1, "presence_penalty": -1, "logit_bias": {"1": 2}, "min_p": 0.1}
        self.assertEqual(self.parameters(**requested), requested)
        self.assertEqual(self.parameters(min_tokens=3), {"min_new_tokens": 3})

    def test_the_format_of_an_answer_is_a_grammar(self) -> None:
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
        closed = {**schema, "additionalProperties": False}
        named = {"name": "n", "strict": False, "schema": schema}
        any_object = {"type": "object"}
        for fields, kind, value in (
            ({"response_format": {"type": "json_schema", "json_schema": named}}, "json", schema),
            ({"response_format": {"type": "json_schema", "json_schema": {**named, "strict": True}}}, "json", closed),
            ({"structured_outputs": {"json": False}}, "json", False),
            ({"response_format": {"type": "json_object"}}, "json", any_object),
            ({"response_format": {"type": "json_object", "schema": schema}}, "json", schema),
            ({"response_format": {"type": "json_object", "value": schema}}, "json", schema),
            ({"response_format": {"type": "json", "value": schema}}, "json", schema),
            ({"response_format": {"type": "regex", "value": "a+"}}, "regex", "a+"),
            ({"structured_outputs": {"json": schema, "regex": None}}, "json", schema),
            ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"),
            ({"structured_outputs": {"choice": ["a", "b"], "disable_any_whitespace": False}}, "choice", ["a", "b"]),
            ({"structured_outputs": {"json_object": True}}, "json", any_object),
        ):
            with self.subTest(fields):
                request = completions.read_chat({"messages": HELLO, **fields}, PIPELINE)
                self.assertEqual(request.submission.parameters["grammar"], {"type": kind, "value": value})
                self.assertEqual(request.translate_field_names("parameters.grammar: no"), f"{next(iter(fields))}: no")
        read = completions.read_chat(
            {"messages": HELLO, "response_format": {"type": "json_schema", "json_schema": named}}, PIPELINE
        )
        where = "response_format.json_schema.schema"
        self.assertEqual(read.translate_field_names("parameters.grammar.value: no"), f"{where}: no")
        text = {"response_format": {"type": "text"}}
        plain = completions.read_chat({"messages": HELLO, **text}, PIPELINE)
        self.assertNotIn("grammar", plain.submission.parameters)
        both = completions.read_chat({"messages": HELLO, **text, "structured_outputs": {"regex": "a"}}, PIPELINE)
        self.assertEqual(both.submission.parameters["grammar"], {"type": "regex", "value": "a"})

    def test_what_is_no_format_is_refused_in_the_client_s_words(self) -> None:
        known = "json, regex, choice, json_object"
        for fields, field, message in (
            ({"response_format": "json"}, "response_format", "must be an object, not a string."),
            ({"response_format": {"type": "xml"}}, "response_format.type", "must be one of text, json_object, "),
            ({"response_format": {}}, "response_format.type", "must be one of text, json_object, "),
            ({"response_format": {"type": "regex"}}, "response_format.type", "must be one of text, json_object, "),
            ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "must be an object such as "),
            ({"structured_outputs": {}}, "structured_outputs", f"must have one of {known}."),
            (
                {"structured_outputs": {"regex": "a", "choice": ["a"]}},
                "structured_outputs",
                f"must have one of {known}.",
            ),
            (
                {"structured_outputs": {"grammar": "a"}},
                "structured_outputs.grammar",
                f"is not served; send one of {known}.",
            ),
            (
                {"guided_json": {"type": "object"}},
                "guided_json",
                'is not served; send structured_outputs: {"json": …}.',
            ),
            (
                {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
                "structured_outputs",
                "send it without response_format, or response_format without it.",
            ),
            (
                {"grammar": {"type": "regex", "value": "a"}, "response_format": {"type": "json_object"}},
                "grammar",
                "send it without response_format, or response_format without it.",
            ),
        ):
            with self.subTest(fields), self.assertRaises(InvalidInput) as caught:
                completions.read_chat({"messages": HELLO, **fields}, PIPELINE)
            self.assertEqual(caught.exception.field, field)
            self.assertTrue(caught.exception.message.startswith(f"{field}: {message}"), caught.exception.message)

    def test_the_service_tier_is_the_priority(self) -> None:
        for tier, priority in (("auto", 2), ("default", 2), ("flex", 3), ("priority", 1), (None, 2)):
            with self.subTest(tier):
                read = completions.read_chat({"model": "prompts", "messages": HELLO, "service_tier": tier})
                self.assertEqual(read.submission.priority, priority)
        for wrong in ("fast", 1, ["flex"]):
            error = self.refused({"model": "prompts", "messages": HELLO, "service_tier": wrong})
            self.assertEqual(error.message, f"service_tier: must be one of {', '.join(PRIORITIES_BY_TIER)}.")

    def test_what_would_is_refused_by_name(self) -> None:
        changing: dict[str, Any] = {
            "tools": [{"type": "function", "function": {"name": "f"}}], "functions": [{}], "best_of": 3,
            "response_format": {"type": "json_object"}, "logprobs": True, "top_logprobs": 2,
            "modalities": ["text", "audio"], "audio": {"voice": "x"},
            "suffix": "x", "echo": True, "return_full_text": True, "reasoning_effort": "low", "verbosity": "low",
            "web_search_options": {}, "stream_option": {}, "max_token": 3,
        }  # fmt: skip
        for name, value in changing.items():
            with self.subTest(name):
                error = self.refused({"model": "prompts", "messages": HELLO, name: value})
                self.assertEqual(error.field, name)
                self.assertTrue(error.message.startswith(f"{name}: "), error.message)
        options = {"model": "prompts", "messages": HELLO, "stream": True, "stream_options": {"usage_in_each": True}}
        self.assertEqual(self.refused(options).field, "stream_options.usage_in_each")

    def test_logprobs_0_of_a_text_is_refused_as_it_requests_some(self) -> None:
        error = self.refused({"model": "prompts", "prompt": "x", "logprobs": 0}, completions.read_text_completion)
        self.assertEqual(error.field, "logprobs")

    def test_the_error_of_a_misspelt_field_suggests_the_right_one(self) -> None:
        error = self.refused({"model": "prompts", "messages": HELLO, "max_token": 3})
        self.assertEqual(error.message, "max_token: unknown field; did you mean max_tokens?")

    def test_two_limits_are_one_too_many(self) -> None:
        for other in ("max_completion_tokens", "max_new_tokens"):
            error = self.refused({"model": "prompts", "messages": HELLO, other: 4, "max_tokens": 3})
            self.assertEqual(error.message, f"max_tokens: is the same as {other}; send one of them.")

    def test_messages_have_the_roles_and_the_content_that_templates_know(self) -> None:
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        messages = [
            {"role": "developer", "content": "be kind"}, {"role": "user", "content": parts, "name": "Ann"},
            {"role": "assistant", "content": "c", "refusal": None, "tool_calls": None, "annotations": [1], "audio": {}},
        ]  # fmt: skip
        request = completions.read_chat({"model": "prompts", "messages": messages})
        self.assertEqual(
            request.submission.inputs,
            [
                {"role": "system", "content": "be kind"},
                {"role": "user", "content": "a\nb"},
                {"role": "assistant", "content": "c"},
            ],
        )

    def test_an_assistant_that_said_nothing_has_an_empty_content(self) -> None:
        silent: list[dict[str, Any]] = [
            {"role": "assistant", "content": None, "tool_calls": []}, {"role": "assistant"}
        ]  # fmt: skip
        for message in silent:
            request = completions.read_chat({"model": "prompts", "messages": [*HELLO, message, *HELLO]})
            self.assertEqual(request.submission.inputs[1], {"role": "assistant", "content": ""})
        nothing = {"role": "user", "content": None}
        self.assertEqual(self.refused({"model": "prompts", "messages": [nothing]}).field, "messages[0].content")

    def test_a_last_message_of_the_assistant_is_answered_unless_it_is_to_be_gone_on_with(self) -> None:
        begun = [*HELLO, {"role": "assistant", "content": "I am"}]
        going_on = {"continue_final_message": True, "add_generation_prompt": False}
        answering = {"continue_final_message": False, "add_generation_prompt": True}
        for messages, fields, expected in (
            (HELLO, {}, {}),
            (HELLO, answering, {}),
            (HELLO, going_on, {"continue_final_message": True}),
            (begun, {}, {"continue_final_message": False}),
            (begun, {"continue_final_message": None}, {"continue_final_message": False}),
            (begun, answering, {"continue_final_message": False}),
            (begun, going_on, {"continue_final_message": True}),
        ):
            with self.subTest(fields=fields, last=messages[-1]["role"]):
                self.assertEqual(self.parameters(messages=messages, **fields), expected)
        wrong: list[tuple[str, Any]] = [
            ("continue_final_message", True), ("continue_final_message", 1), ("add_generation_prompt", False)
        ]  # fmt: skip
        for field, value in wrong:
            with self.subTest(field=field, value=value):
                error = self.refused({"model": "prompts", "messages": begun, field: value})
                self.assertEqual(error.field, field)
        text = {"model": "prompts", "prompt": "a", "continue_final_message": True}
        self.assertEqual(self.refused(text, completions.read_text_completion).field, "continue_final_message")

    def test_other_messages_are_refused_with_their_place(self) -> None:
        table: list[tuple[Any, str]] = [
            (None, "messages"),
            ([], "messages"),
            ("hello", "messages"),
            (["hello"], "messages[0]"),
            ([{"content": "x"}], "messages[0].role"),
            ([*HELLO, {"role": "function", "content": "x"}], "messages[1].role"),
            ([*HELLO, {"role": "tool", "content": "x"}], "messages[1].tool_call_id"),
            ([*HELLO, {"role": "tool", "content": "x", "tool_call_id": "other"}], "messages[1].tool_call_id"),
            ([{"role": "user", "content": "x", "tool_calls": [{}]}], "messages[0].tool_calls"),
            ([{"role": ["user"], "content": "x"}], "messages[0].role"),
            ([{"role": "user"}], "messages[0].content"),
            ([{"role": "user", "content": []}], "messages[0].content"),
            ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]"),
            ([{"role": "assistant", "content": "", "tool_calls": {"a": 1}}], "messages[0].tool_calls"),
            ([{"role": "assistant", "content": "", "tool_calls": [{}]}], "messages[0].tool_calls[0]"),
            *(
                (
                    [{"role": "assistant", "tool_calls": [call("f", wrong)]}],
                    "messages[0].tool_calls[0].function.arguments",
                )
                for wrong in (
                    "{",
                    "[1]",
                    '{"a": NaN}',
                    '{"a": "\\ud800"}',
                    '{"a": "\\u0000"}',
                    '{"a": ' + 900 * "[" + 900 * "]" + "}",
                )
            ),
            ([{"role": "assistant", "tool_calls": [call("f", '{"k": [' + 200_000 * "[]," + "[]]}")] * 2}], "messages"),
            ([{"role": "user", "content": "what is it?", "images": ["aGk="]}], "messages[0].images"),
            ([{"role": "assistant", "content": "", "refusal": "no"}], "messages[0].refusal"),
        ]
        for messages, field in table:
            with self.subTest(messages):
                self.assertEqual(self.refused({"model": "prompts", "messages": messages}).field, field)

    def test_calls_of_tools_and_their_results_are_as_templates_take_them(self) -> None:
        messages = [
            *HELLO,
            {"role": "assistant", "content": None, "tool_calls": [call("f", '{"a": 1}'), call("g", "")]},
            {"role": "tool", "tool_call_id": "call_g", "content": [{"type": "text", "text": "2"}]},
        ]
        request = completions.read_chat({"model": "prompts", "messages": messages})
        functions = [
            {"id": "call_f", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
            {"id": "call_g", "type": "function", "function": {"name": "g", "arguments": {}}},
        ]
        self.assertEqual(
            request.submission.inputs[1:],
            [
                {"role": "assistant", "content": "", "tool_calls": functions},
                {"role": "tool", "content": "2", "tool_call_id": "call_g", "name": "g"},
            ],
        )

    def read_tools(self, **fields: Any) -> dict[str, Any]:
        parameters = completions.read_chat({"messages": HELLO, **fields}, PIPELINE).submission.parameters
        return {name: value for name, value in parameters.items() if name in ("tools", "grammar", "stop")}

    def test_tools_are_shown_to_the_model(self) -> None:
        bare = {"type": "function", "function": {"name": "f"}}
        nothing: dict[str, Any] = {"type": "object", "properties": {}}
        shown = {"type": "function", "function": {"name": "f", "description": "", "parameters": nothing}}
        for fields, expected in (
            ({"tools": [bare]}, {"tools": [shown]}),
            ({"tools": [bare], "tool_choice": "auto", "parallel_tool_calls": True}, {"tools": [shown]}),
            (
                {"tools": [bare], "parallel_tool_calls": False, "stop": "x"},
                {"tools": [shown], "stop": ["x", "</tool_call>"]},
            ),
            ({"tools": [bare], "tool_choice": "none"}, {}),
            ({"tools": [], "tool_choice": "auto"}, {}),
            ({"tools": None, "tool_choice": "none"}, {}),
        ):
            with self.subTest(fields):
                self.assertEqual(self.read_tools(**fields), expected)

    def test_a_call_that_is_required_is_a_grammar(self) -> None:
        inner = {"type": "object", "properties": {"x": {"$ref": "#/$defs/X"}, "me": {"$ref": "#"}}, "$defs": {"X": {}}}
        tools = [
            {"type": "function", "function": {"name": "f", "description": "d", "parameters": inner, "strict": True}},
            {"type": "function", "function": {"name": "g-1"}},
        ]
        moved = {
            "type": "object",
            "properties": {"x": {"$ref": "#/$defs/f/$defs/X"}, "me": {"$ref": "#/$defs/f"}},
            "$defs": {"X": {}},
            "additionalProperties": False,
        }
        named = {"type": "function", "function": {"name": "f"}}
        for choice, names in (("required", ["f", "g-1"]), (named, ["f"])):
            with self.subTest(choice):
                found = self.read_tools(tools=tools, tool_choice=choice)
                self.assertEqual([tool["function"]["name"] for tool in found["tools"]], ["f", "g-1"])
                schema = found["grammar"]["value"]
                self.assertEqual(schema["$defs"]["f"], moved)
                self.assertEqual([each["properties"]["name"]["const"] for each in schema["anyOf"]], names)

    def test_beside_tools_a_grammar_is_for_answers_without_calls(self) -> None:
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        ways = [("f", "arguments"), ("f", "parameters"), ("g-1", "arguments"), ("g-1", "parameters")]
        regex = {"type": "regex", "value": "a"}
        for fields, expected in (
            ({"response_format": {"type": "json_object"}}, {"type": "json", "value": {"type": "object"}}),
            ({"structured_outputs": {"regex": "a"}}, regex),
            ({"grammar": regex, "tool_choice": "auto"}, regex),
        ):
            with self.subTest(fields):
                tools = [tool, {"type": "function", "function": {"name": "g-1"}}]
                found = self.read_tools(tools=tools, parallel_tool_calls=False, **fields)
                self.assertEqual(found["stop"], ["</tool_call>"])
                calls = found["grammar"].pop("calls")
                self.assertEqual(found["grammar"], expected)
                self.assertEqual(calls["$defs"]["f"], {"type": "object"})
                shown = [each["properties"] for each in calls["anyOf"]]
                self.assertEqual([(each["name"]["const"], [*each][1]) for each in shown], ways)
        self.assertNotIn("calls", self.read_tools(tools=[tool], tool_choice="none", grammar=regex)["grammar"])

    def test_objects_of_a_call_have_only_the_properties_that_are_named(self) -> None:
        named: dict[str, Any] = {"type": "object", "properties": {"a": {}}}
        closed = {**named, "additionalProperties": False}
        for schema, expected in (
            (named, closed),
            ({**named, "additionalProperties": True}, {**named, "additionalProperties": True}),
            ({"type": "object"}, {"type": "object"}),
            ({"type": "object", "properties": {"b": named}}, {**closed, "properties": {"b": closed}}),
            ({"allOf": [named, named]}, {"allOf": [named, named]}),
            ({**named, "anyOf": [{}]}, {**named, "anyOf": [{}]}),
            ({"properties": {"a": {}}}, closed),
            ({**closed, "const": named, "$id": "x"}, {**closed, "const": named}),
            ({**closed, "enum": [{"$ref": "#/x"}]}, {**closed, "enum": [{"$ref": "#/x"}]}),
            *(
                ({**named, "properties": {name: named}}, {**closed, "properties": {name: closed}})
                for name in ("allOf", "const", "default", "enum", "examples")
            ),
            (
                {"type": "object", "properties": {"default": {"$ref": "#/$defs/enum"}}, "$defs": {"enum": named}},
                {**closed, "properties": {"default": {"$ref": "#/$defs/f/$defs/enum"}}, "$defs": {"enum": closed}},
            ),
            (
                {**named, "properties": {"$id": {}, "$ref": named}, "default": {"type": "object", "properties": {}}},
                {**closed, "properties": {"$id": {}, "$ref": closed}, "default": {"type": "object", "properties": {}}},
            ),
            (
                {"type": "object", "schemas": {"A": {"$ref": "#"}}},
                {"type": "object", "schemas": {"A": {"$ref": "#/$defs/f"}}},
            ),
        ):
            with self.subTest(schema):
                tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
                found = self.read_tools(tools=[tool], tool_choice="required")
                self.assertEqual(found["grammar"]["value"]["$defs"]["f"], expected)

    def test_tools_that_are_none_are_refused_with_their_place(self) -> None:
        tool = {"type": "function", "function": {"name": "f"}}
        schema = {"type": "json_object"}
        for fields, field in (
            ({"tools": {}}, "tools"),
            ({"tools": [tool] * 2}, "tools"),
            ({"tools": [tool] * 129}, "tools"),
            ({"tools": [{"type": "web_search"}]}, "tools[0]"),
            ({"tools": [tool, {"type": "function"}]}, "tools[1]"),
            ({"tools": [{"function": {"name": "a b"}}]}, "tools[0].function.name"),
            ({"tools": [{"function": {"name": "f", "parameters": [1]}}]}, "tools[0].function.parameters"),
            ({"tools": [{"function": {"name": "f", "description": 1}}]}, "tools[0].function.description"),
            ({"tools": [{"function": {"name": "f", "parameters": False}}]}, "tools[0].function.parameters"),
            ({"tools": [{"function": {"name": "f", "parameters": {"type": "array"}}}]}, "tools[0].function.parameters"),
            ({"tools": [{"function": {"name": "f", "strict": "x"}}]}, "tools[0].function.strict"),
            ({"tools": [{"function": {"name": "f", "paramaters": {"a": 1}}}]}, "tools[0].function.paramaters"),
            ({"tools": [tool], "parallel_tool_calls": 5}, "parallel_tool_calls"),
            ({"tools": [tool], "tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
            ({"tools": [tool], "tool_choice": "any"}, "tool_choice"),
            ({"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
            ({"tool_choice": "required"}, "tool_choice"),
            ({"tools": [tool], "tool_choice": "required", "response_format": schema}, "response_format"),
            ({"tools": [tool], "tool_choice": "required", "grammar": {"type": "regex", "value": "a"}}, "grammar"),
        ):
            with self.subTest(fields), self.assertRaises(InvalidInput) as caught:
                completions.read_chat({"messages": HELLO, **fields}, PIPELINE)
            self.assertEqual(caught.exception.field, field)

    def test_several_answers_are_a_list_of_the_same_prompt(self) -> None:
        chat = completions.read_chat({"model": "prompts", "messages": HELLO, "n": 3})
        self.assertEqual((chat.submission.inputs, chat.answers), ([HELLO] * 3, 3))
        self.assertEqual(chat.translate_field_names("inputs[1]: is too long."), "messages: is too long.")
        text = {"model": "prompts", "prompt": ["a", "b"], "n": 2}
        read = completions.read_text_completion(text)
        self.assertEqual(read.submission.inputs, ["a", "a", "b", "b"])
        self.assertEqual(read.translate_field_names("inputs[3]: is too long."), "prompt[1]: is too long.")
        for fields, field in (
            ({"n": 0}, "n"), ({"n": 129}, "n"), ({"n": True}, "n"), ({"n": "2"}, "n"), ({"n": 2, "stream": True}, "n"),
            ({"n": 2, "seed": 1}, "n"),
        ):  # fmt: skip
            with self.subTest(fields):
                self.assertEqual(self.refused({"model": "prompts", "messages": HELLO, **fields}).field, field)
        streamed = {"model": "prompts", "prompt": ["a", "b"], "stream": True}
        self.assertEqual(self.refused(streamed, completions.read_text_completion).field, "prompt")

    def test_log_probabilities_are_a_number_of_the_likeliest_tokens(self) -> None:
        for fields, expected in (
            ({"logprobs": True}, 0),
            ({"logprobs": True, "top_logprobs": 3}, 3),
            ({"logprobs": False}, None),
            ({}, None),
        ):
            with self.subTest(fields):
                read = completions.read_chat({"messages": HELLO, **fields}, PIPELINE)
                self.assertEqual(read.submission.parameters.get("logprobs"), expected)
        text = completions.read_text_completion({"prompt": "a", "logprobs": 2}, PIPELINE)
        self.assertEqual(text.submission.parameters["logprobs"], 2)
        with self.assertRaises(InvalidInput) as other:
            completions.read_text_completion({"prompt": "a", "logprobs": 2, "top_logprobs": 2}, PIPELINE)
        self.assertEqual(other.exception.field, "top_logprobs")
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"top_logprobs": 2}, "top_logprobs"),
            ({"top_logprobs": ""}, "top_logprobs"),
            ({"logprobs": True, "top_logprobs": []}, "top_logprobs"),
            ({"logprobs": 1}, "logprobs"),
            ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ]
        for fields, field in wrong:
            with self.subTest(fields), self.assertRaises(InvalidInput) as caught:
                completions.read_chat({"messages": HELLO, **fields}, PIPELINE)
            self.assertEqual(caught.exception.field, field)

    def test_an_answer_that_begins_with_its_prompt(self) -> None:
        limited = {"max_new_tokens": 5, **OWN, "return_full_text": True}
        alone = {**limited, "max_new_tokens": 1, "prompt_only": True}
        scores = {"logprobs": 2, "prompt_logprobs": 2}
        for fields, expected in (
            ({"max_tokens": 5}, limited), ({"max_tokens": 5, "logprobs": 2}, {**limited, **scores}),
            ({"max_tokens": 0}, alone), ({"max_completion_tokens": 0, "logprobs": 2}, {**alone, **scores}),
            ({"max_tokens": 5, "echo": False}, {**limited, "return_full_text": False}),
        ):  # fmt: skip
            with self.subTest(fields):
                read = completions.read_text_completion({"prompt": "a", "echo": True, **fields}, PIPELINE)
                self.assertEqual(read.submission.parameters, expected)
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"echo": 1}, "echo"), ({"echo": True, "stream": True}, "echo"),
            ({"echo": True, "max_tokens": False}, "max_tokens"), ({"max_tokens": 0}, "max_tokens"),
            ({"prompt_logprobs": 1}, "prompt_logprobs"), ({"prompt_only": True}, "prompt_only"),
            ({"echo": True, "max_tokens": 0, "n": 2}, "n"),
        ]  # fmt: skip
        for fields, field in wrong:
            with self.subTest(fields), self.assertRaises(InvalidInput) as caught:
                read = completions.read_text_completion({"prompt": "a", **fields}, PIPELINE)
                with read.translate_errors():
                    validate_parameters(PIPELINE, read.submission.parameters)
            self.assertEqual(caught.exception.field, field)
        limit = replace(PIPELINE.parameters["max_new_tokens"], min=5)
        least = replace(PIPELINE, parameters={**PIPELINE.parameters, "max_new_tokens": limit})
        read = completions.read_text_completion({"prompt": "a", "echo": True, "max_tokens": 0}, least)
        self.assertEqual(read.submission.parameters["max_new_tokens"], 5)
        own = {"model": "prompts", "prompt": "x", "echo": True, "max_tokens": 0}
        self.assertEqual(self.refused(own, completions.read_text_completion).field, "echo")

    def test_an_answer_that_ignores_its_end_has_as_many_tokens_as_it_may(self) -> None:
        self.assertEqual(self.parameters(ignore_eos=True, max_tokens=5), {"max_new_tokens": 5, "min_new_tokens": 5})
        chat = self.parameters(ignore_eos=True)
        self.assertEqual(chat, {"min_new_tokens": CHAT_TOKENS})
        text = {"model": "prompts", "prompt": "a", "ignore_eos": True}
        self.assertEqual(self.refused(text, completions.read_text_completion).field, "ignore_eos")

    def test_values_of_wrong_types_are_left_to_be_refused(self) -> None:
        tool = {"type": "function", "function": {"name": "f"}}
        for fields in (
            {"tools": [tool], "parallel_tool_calls": False, "stop": 5},
            {"tools": [tool], "parallel_tool_calls": False, "stop": {"a": 1}},
            {"ignore_eos": True, "max_tokens": "x"},
        ):
            with self.subTest(fields), self.assertRaises(InvalidInput) as caught:
                read = completions.read_chat({"messages": HELLO, **fields}, PIPELINE)
                validate_parameters(PIPELINE, read.submission.parameters)
            self.assertIn(caught.exception.field, ("parameters.stop", "parameters.max_new_tokens"))
        stops = list("abcdefgh")
        self.assertEqual(self.read_tools(tools=[tool], parallel_tool_calls=False, stop=stops)["stop"], stops)

    def test_a_prompt_is_a_text_or_several(self) -> None:
        for prompt in ("a", ["a"]):
            with self.subTest(prompt):
                self.assertEqual(
                    completions.read_text_completion({"model": "prompts", "prompt": prompt}).submission.inputs, "a"
                )
        mixed: tuple[object, ...] = ([1, "a"], ["a", 1], [[1], []], [[]], [True], [-1], [1.0])
        for wrong in (None, [], *mixed, {TOKENS: [1]}, 7):
            with self.subTest(wrong):
                error = self.refused({"model": "prompts", "prompt": wrong}, completions.read_text_completion)
                self.assertEqual(error.field, "prompt")

    def test_the_model_is_one_that_generates(self) -> None:
        for name in (None, 7, "pictures"):
            with self.subTest(name):
                self.assertEqual(self.refused({"model": name, "messages": HELLO}).field, "model")
        with self.assertRaises(UnknownModel):
            completions.read_chat({"model": "nope", "messages": HELLO})
        self.assertEqual(self.refused(["x"]).field, "body")

    def test_an_address_that_names_the_model_comes_before_the_body(self) -> None:
        spec: ModelSpec = get_spec("prompts")
        self.assertIs(completions.read_chat({"model": "dummy", "messages": HELLO}, spec).submission.spec, spec)


@override_settings(MODELS_FILE=MODELS_FILE)
class AnswerTests(ApiTestCase):
    def complete(self, path: str, **fields: Any) -> dict[str, Any]:
        with self.worker(generated):
            answer = self.post(path, {"model": "prompts", **fields})
        self.assertEqual(answer.status_code, 200, answer.content)
        job = Job.objects.get(whole__isnull=True)
        self.assertEqual(answer["Content-Location"], f"/v1/jobs/{job.id}/output")
        completion: dict[str, Any] = answer.json()
        self.assertEqual(completion["created"], int(job.created_at.timestamp()))
        self.assertRegex(completion["system_fingerprint"], "^fp_[0-9a-f]+$")
        return completion

    def test_the_tier_is_shown_in_the_answer(self) -> None:
        completion = self.complete(CHAT, messages=HELLO, service_tier="flex")
        self.assertEqual((completion["service_tier"], Job.objects.get().priority), ("flex", 3))

    def test_a_chat(self) -> None:
        completion = self.complete(CHAT, messages=HELLO)
        self.assertEqual(completion["service_tier"], "default")
        self.assertEqual((completion["object"], completion["model"]), ("chat.completion", "prompts"))
        self.assertEqual(completion["id"], f"chatcmpl-{Job.objects.get().id}")
        [choice] = completion["choices"]
        self.assertEqual(choice["message"], {"role": "assistant", "content": "<user:hello>", "refusal": None})
        self.assertEqual((choice["index"], choice["finish_reason"], choice["logprobs"]), (0, "stop", None))
        self.assertEqual(completion["usage"], {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5})

    def test_a_text(self) -> None:
        completion = self.complete(TEXT, prompt="hello")
        self.assertEqual((completion["object"], completion["id"]), ("text_completion", f"cmpl-{Job.objects.get().id}"))
        self.assertEqual(
            completion["choices"], [{"index": 0, "text": "<hello>", "finish_reason": "stop", "logprobs": None}]
        )
        self.assertEqual(completion["usage"]["total_tokens"], 5)

    def test_a_text_with_its_prompt(self) -> None:
        completion = self.complete(TEXT, prompt="hello", echo=True)
        self.assertEqual(completion["choices"][0]["text"], "hello<hello>")
        fields = {"model": "prompts", "prompt": "hello", "echo": True, "stream": True}
        for refused in (self.post(TEXT, fields), self.client.get(f"{TEXT}/{completion['id']}?stream=true")):
            self.assertEqual((refused.status_code, refused.json()["error"]["param"]), (400, "echo"))
            self.assertIn("not served with a stream; leave out one", refused.json()["error"]["message"])

    def test_a_prompt_may_be_tokens(self) -> None:
        for prompt, inputs in (
            ([1, 2], {TOKENS: [1, 2]}), ([[1, 2]], {TOKENS: [1, 2]}), ([[1], "a"], [{TOKENS: [1]}, "a"]),
        ):  # fmt: skip
            read = completions.read_text_completion({"prompt": prompt}, PIPELINE)
            self.assertEqual(read.submission.inputs, inputs)
            validate_inputs(PIPELINE, inputs)
        answer = self.post(TEXT, {"model": "prompts", "prompt": [1, 2]})
        self.assertEqual((answer.status_code, answer.json()["error"]["param"]), (400, "prompt"))
        for wrong, field, said in (
            ({TOKENS: [1, -1]}, f"inputs.{TOKENS}[1]", "must be a whole number from 0, not -1."),
            ({TOKENS: [1.0]}, f"inputs.{TOKENS}[0]", "must be a whole number from 0, not 1.0."),
            ({TOKENS: []}, f"inputs.{TOKENS}", "must be a list of at least one token"),
            ({}, f"inputs.{TOKENS}", "is required"),
            ({"x": 1}, "inputs", "unknown field"),
        ):
            with self.subTest(wrong), self.assertRaises(InvalidInput) as refused:
                validate_inputs(PIPELINE, wrong)
            self.assertEqual(refused.exception.field, field)
            self.assertIn(said, refused.exception.message)
        self.assertEqual(measure_inputs(PIPELINE, {TOKENS: [7] * 9}, {"max_new_tokens": 1})[1], 10)
        prefill = [{"text": "a", "start": 0, "special": False}, {"text": "</s>", "start": 1, "special": True}]
        self.assertEqual([measure_prompt({}, prefill[:count]) for count in (1, 2)], [1, 1])

    def test_the_tokens_of_a_prompt_have_their_places_in_the_text(self) -> None:
        def token(text: str, start: int, logprob: float | None = -1.0, *, special: bool = False) -> dict[str, Any]:
            return {"id": 1, "text": text, "start": start, "logprob": logprob, "special": special}

        prompt = [token("<s>", 0, None, special=True), token("a", 0), token("\ufffd", 1), token("\ufffd", 1)]
        prompt += [token(" b", 3)]  # behind a character that the tokenizer has composed
        answer = [token(" c", 0), token("</s>", 2, special=True)]
        best = [token("x", 0, -0.5), token("x", 0, -0.7)]
        details = {"prefill": prompt, "prefill_top_tokens": [[], best, [], [], []]}
        details |= {"tokens": answer, "top_tokens": [best, []]}
        found = make_text_logprobs(list_scores_with_prompt(details, prompt=len("ae\u0301 b")))
        self.assertEqual(found["tokens"], ["<s>", "a", "\ufffd", "\ufffd", " b", " c", "</s>"])
        self.assertEqual(found["token_logprobs"], [None] + 6 * [-1.0])
        self.assertEqual(found["top_logprobs"], [None, {"x": -0.5}, {}, {}, {}, {"x": -0.5}, {}])
        self.assertEqual(found["text_offset"], [0, 0, 1, 1, 3, 5, 7])
        described = [{name: value for name, value in each.items() if name != "start"} for each in prompt]
        found = make_text_logprobs(list_scores_with_prompt({**details, "prefill": described}, prompt=5))
        self.assertEqual(found["text_offset"], [0, 0, 1, 2, 3, 5, 7])  # as far as an engine of one's own says
        scored = {"generated_text": "ab", "details": details}
        for inputs, outputs, before in (("a", [scored], 1), (["x", "a"], [[scored], [scored]], None)):
            parameters = {"return_full_text": True}
            job = Job(model="prompts", inputs=inputs, parameters=parameters, output=outputs, prompt_length=before)
            for choice in shapes.make_completion(shapes.TEXT, job)["choices"]:
                self.assertEqual(choice["logprobs"]["text_offset"], [0, 0, 1, 1, 3, 1, 3])

    def test_the_prompts_of_a_list_longer_than_a_batch_have_their_scores(self) -> None:
        def score(value: Any, parameters: dict[str, Any]) -> Any:
            token = {"id": 1, "text": value, "start": 0, "logprob": None, "special": False}
            details = {"prefill": [token], "prefill_top_tokens": [[]], "tokens": [token], "top_tokens": [[]]}
            return [{"generated_text": f"{value}!", "details": {**details, "finish_reason": "length"}}]

        texts = ["x" * count for count in range(1, 41)]
        prompts = {"model": "prompts", "prompt": texts, "echo": True}
        with patch.object(ModelSpec, "max_queued", 5), self.worker(score):
            answer = self.post(TEXT, prompts)
        self.assertEqual(answer.status_code, 200, answer.content)
        offsets = [choice["logprobs"]["text_offset"] for choice in answer.json()["choices"]]
        self.assertEqual(offsets, [[0, len(text)] for text in texts])

    def test_hugging_face_s_clients_name_the_model_in_the_address(self) -> None:
        chat = self.complete("/v1/models/prompts/v1/chat/completions", messages=HELLO)
        self.assertEqual(chat["choices"][0]["message"]["content"], "<user:hello>")

    def test_why_it_ended(self) -> None:
        for reason, expected in (("length", "length"), ("eos_token", "stop"), ("stop_sequence", "stop")):
            with self.subTest(reason):
                Job.objects.all().delete()

                def ended(value: Any, parameters: dict[str, Any], reason: str = reason) -> Any:
                    details = {"finish_reason": reason, "prompt_tokens": 1, "generated_tokens": 1}
                    return [{"generated_text": "x", "details": details}]

                with self.worker(ended):
                    answer = self.post(TEXT, {"model": "prompts", "prompt": "hello"}).json()
                self.assertEqual(answer["choices"][0]["finish_reason"], expected)

    def test_a_key_of_idempotency_is_one_job(self) -> None:
        with self.worker(generated):
            ids = [
                self.post(CHAT, {"model": "prompts", "messages": HELLO}, headers={"Idempotency-Key": "a"}).json()["id"]
                for _ in range(2)
            ]
        self.assertEqual((ids[0], Job.objects.count()), (ids[1], 1))

    def test_an_answer_is_found_again(self) -> None:
        completion = self.complete(CHAT, messages=HELLO)
        self.assertEqual(self.client.get(f"{CHAT}/{completion['id']}").json(), completion)

    def test_several_answers_are_found_again_and_deleted(self) -> None:
        many = [str(number) for number in range(40)]  # more than a batch holds
        for path, fields, count in (
            (CHAT, {"messages": HELLO, "n": 2}, 2),
            (TEXT, {"prompt": ["a", "b"]}, 2),
            (TEXT, {"prompt": ["a", "a", "b"], "n": 2}, 6),
            (TEXT, {"prompt": many, "n": 2}, 80),
        ):
            with self.subTest(fields), patch.object(ModelSpec, "max_queued", 5):
                Job.objects.all().delete()
                completion = self.complete(path, **fields)
                self.assertEqual(len(completion["choices"]), count)
                found = f"{path}/{completion['id']}"
                self.assertEqual(self.client.get(found).json(), completion)
                streamed = self.client.get(f"{found}?stream=true")
                self.assertEqual((streamed.status_code, streamed.json()["error"]["code"]), (400, "bad_request"))
                self.assertIn("does not generate one text", streamed.json()["error"]["message"])
                if path == CHAT:
                    self.assertIs(self.client.delete(found).json()["deleted"], True)
                    self.assertEqual(self.client.get(found).status_code, 404)

    def test_a_job_that_still_runs_is_waited_for(self) -> None:
        job = jobs.submit(Submission(spec=get_spec("prompts"), inputs="hello"))
        self.assertEqual(self.client.get(f"{CHAT}/chatcmpl-{job.id}?timeout=0.01").status_code, 504)
        with self.worker(generated):
            found = self.client.get(f"{CHAT}/chatcmpl-{job.id}").json()
        self.assertEqual(found["choices"][0]["message"]["content"], "<hello>")

    def test_a_job_of_another_address_has_the_text_of_its_stream(self) -> None:
        begun = [*HELLO, {"role": "assistant", "content": "hi"}]
        for inputs, whole, before in ((HELLO, begun, 0), ("hello", "hellohi", len("hello"))):
            values = {"inputs": inputs, "output": [{"generated_text": whole}], "prompt_length": before}
            job = Job.objects.create(model="prompts", status=Status.SUCCEEDED, **values)
            found = self.client.get(f"{CHAT}/chatcmpl-{job.id}").json()
            self.assertEqual(found["choices"][0]["message"]["content"], "hi")
            self.assertIsNone(found["usage"])

    def test_what_is_no_completion_is_not_found(self) -> None:
        picture = jobs.submit(Submission(spec=get_spec("pictures"), inputs="aGVsbG8="))
        for found in ("x", uuid4(), picture.id):
            for query in ("", "?stream=true"):
                with self.subTest(found=found, query=query):
                    answer = self.client.get(f"{CHAT}/chatcmpl-{found}{query}")
                    self.assertEqual((answer.status_code, answer.json()["error"]["code"]), (404, "job_not_found"))

    def test_models_are_those_that_generate(self) -> None:
        models = self.client.get(MODELS).json()
        self.assertEqual((models["object"], [each["id"] for each in models["data"]]), ("list", ["prompts"]))
        self.assertEqual(self.client.get(f"{MODELS}/prompts").json(), models["data"][0])
        self.assertEqual(models["data"][0]["object"], "model")
