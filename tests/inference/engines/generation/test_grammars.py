"""Grammars: each answer follows its own, alone, in a call of many and by the step, and what is none is refused."""

from __future__ import annotations

import functools
import json
import random
import re
import unittest
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import jsonschema_rs
import llguidance
import torch

from inference.engines.generation.processors import compile_trial
from inference.engines.generation.processors.grammars import BLANKS, MOST_BYTES, MOST_MATCHERS, Grammars
from inference.engines.inputs.stops import read_special_tokens
from inference.errors import InvalidInput
from tests import decoders, tiny_models
from tests.decoders import ProgressCollector
from tests.json_schemas import make_schema

GREEDY = {"do_sample": False, "return_full_text": False, "details": True, "max_new_tokens": 120}
COLOUR = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}, "n": {"type": "integer", "maximum": 99}},
    "required": ["colour", "n"],
    "additionalProperties": False,
}
PROMPTS = ("a", "hello you", "bb")
TAGGED = '<tool_call>{"name": …, "arguments": {…}}</tool_call>'  # as templates of Qwen's kin describe calls
ALONE = '{\\"name\\": function name, \\"parameters\\": dictionary}'  # as those of Llama 3 do


class AnswerTests(unittest.TestCase):
    def test_each_answer_follows_its_grammar_alone_in_a_call_and_by_the_step(self) -> None:
        engine = decoders.engine("Llama")
        for grammar, follows in (
            ({"type": "json", "value": COLOUR}, lambda text: jsonschema_rs.is_valid(COLOUR, json.loads(text))),
            ({"type": "json", "value": json.dumps(COLOUR)}, lambda text: json.loads(text)["colour"] in ("red", "blue")),
            ({"type": "json_schema", "value": {"name": "c", "schema": COLOUR}}, json.loads),
            ({"type": "regex", "value": "[0-9]{3}-x"}, lambda text: re.fullmatch("[0-9]{3}-x", text)),
            (
                {"type": "choice", "value": ["yes \U0001f600\n", 'no "']},
                lambda text: text in ("yes \U0001f600\n", 'no "'),
            ),
        ):
            with self.subTest(grammar):
                given = {**GREEDY, "grammar": grammar}
                together = engine.predict(list(PROMPTS), given)
                self.assertEqual(together, [engine.predict([each], given)[0] for each in PROMPTS])
                stepped = ProgressCollector(engine.stepper)
                for prompt in PROMPTS:
                    engine.stepper.join(prompt, prompt, given, seed=0)
                stepped.all()
                self.assertEqual(together, [stepped.answers[prompt] for prompt in PROMPTS])
                for [answer] in together:
                    self.assertTrue(follows(answer["generated_text"]), answer)
                    self.assertEqual(answer["details"]["finish_reason"], "eos_token")

    def test_an_answer_of_any_schema_that_ends_by_itself_is_valid(self) -> None:
        engine, rng = decoders.engine("Llama"), random.Random(7)
        schemas = [make_schema(rng) for _ in range(40)]
        collector = ProgressCollector(engine.stepper)
        for key, schema in enumerate(schemas):
            given = {**GREEDY, "do_sample": True, "grammar": {"type": "json", "value": schema}}
            engine.stepper.join(key, "a", given, seed=key)
            collector.step()
        collector.all()
        ended = 0
        for key, schema in enumerate(schemas):
            [answer] = collector.answers[key]
            if answer["details"]["finish_reason"] == "eos_token":
                ended += 1
                self.assertTrue(jsonschema_rs.is_valid(schema, json.loads(answer["generated_text"])), (schema, answer))
        self.assertGreater(ended, len(schemas) / 2)

    def test_beside_tools_an_answer_follows_its_grammar_or_is_calls_in_the_form_of_the_template(self) -> None:
        engine, blank = decoders.engine("Llama"), f"({BLANKS})?"
        called: dict[str, Any] = {"type": "object", "required": ["name"], "additionalProperties": False}
        calls = {"anyOf": [{**called, "properties": {"name": {"const": name}}} for name in ("f", "g")]}
        one = r'\{_"name"_:_"[fg]"_\}'.replace("_", blank)
        tagged = rf"<tool_call>[ \n]?{one}[ \n]?</tool_call>"
        for form, written in ((TAGGED, rf"{tagged}([ \n]?{tagged})*"), (ALONE, blank + one)):
            template = f"{{# {form} #}}{{% for m in messages %}}{{{{ m.content }}}}{{% endfor %}}"
            with patch.object(engine.pipe.tokenizer, "chat_template", template):
                for kind, value, follows in (
                    ("json", COLOUR, lambda text: jsonschema_rs.is_valid(COLOUR, json.loads(text))),
                    ("regex", "[0-9]{3}-x", lambda text: re.fullmatch("[0-9]{3}-x", text)),
                    ("choice", ["yes", "{no"], lambda text: text in ("yes", "{no")),
                ):
                    grammar = {"type": kind, "value": value, "calls": calls}
                    collector, ended = ProgressCollector(engine.stepper), {True: 0, False: 0}
                    for key in range(16):
                        given = {**GREEDY, "do_sample": True, "temperature": 9.0, "grammar": grammar}
                        engine.stepper.join(key, [{"role": "user", "content": "a"}], given, seed=key)
                    for [answer] in collector.all().answers.values():
                        text = answer["generated_text"]
                        if answer["details"]["finish_reason"] == "eos_token":
                            is_call = bool(re.fullmatch(written, text))
                            ended[is_call] += 1
                            self.assertTrue(is_call or follows(text), text)
                    self.assertTrue(all(ended.values()), (form, kind, ended))

    def test_a_search_by_beams_follows_it_too(self) -> None:
        for own in ({"num_beams": 3}, {"num_beams": 3, "do_sample": True, "seed": 1}):
            given = {**GREEDY, **own, "grammar": {"type": "json", "value": COLOUR}}
            [[answer]] = decoders.engine("GPT2").predict(["a"], given)
            self.assertTrue(jsonschema_rs.is_valid(COLOUR, json.loads(answer["generated_text"])), answer)
            [[answer]] = decoders.engine("GPT2").predict(
                ["a"], {**given, "grammar": {"type": "choice", "value": ["ab", "cd"]}}
            )
            self.assertIn(answer["generated_text"], ("ab", "cd"))

    def test_rows_without_one_are_as_they_were(self) -> None:
        engine = decoders.engine("Llama")
        collector = ProgressCollector(engine.stepper)
        engine.stepper.join("bound", "a", {**GREEDY, "grammar": {"type": "json", "value": COLOUR}}, seed=0)
        engine.stepper.join("free", "hello", GREEDY, seed=0)
        collector.all()
        self.assertEqual(collector.answers["free"], engine.predict(["hello"], GREEDY)[0])


class RefusalTests(unittest.TestCase):
    def test_calls_are_refused_beside_a_template_that_has_none_in_a_form_that_is_known(self) -> None:
        engine, grammar = decoders.engine("Llama"), {"type": "json", "value": COLOUR, "calls": {"type": "object"}}
        for template in ("{{ messages }}", "[TOOL_CALLS]{{ messages }}", "<tool_call><function=f>{{ messages }}"):
            with self.subTest(template), patch.object(engine.pipe.tokenizer, "chat_template", template):
                self.assertIn("chat template has no calls in a form that is known", self.refuse(grammar).message)
        with patch.object(engine.pipe.tokenizer, "chat_template", TAGGED):
            for calls in ({"type": "foo"}, 7):
                error = self.refuse({**grammar, "calls": calls})
                self.assertEqual(error.field, "parameters.grammar.calls")
            self.assertEqual(self.refuse({**grammar, "value": {"type": "foo"}}).field, "parameters.grammar")
            many = {"enum": ["a" * (MOST_BYTES // 2)]}
            self.assertIn("must have at most", self.refuse({**grammar, "value": many, "calls": many}).message)

    def refuse(self, grammar: Mapping[str, Any], **given: Any) -> InvalidInput:
        with self.assertRaises(InvalidInput) as caught:
            decoders.engine("Llama").predict(["a"], {**GREEDY, "grammar": grammar, **given})
        return caught.exception

    def test_what_is_no_grammar_is_refused_with_the_reason(self) -> None:
        for grammar, reason in (
            ({"type": "json", "value": {"type": "foo"}}, "Invalid type: foo"),
            ({"type": "json", "value": "{"}, "is no JSON: "),
            ({"type": "json", "value": "[" * 60_000}, "is nested too deeply"),
            ({"type": "json", "value": '{"const": "\\u003c|endoftext|>"}'}, "is a special token of this model"),
            ({"type": "json", "value": {"multipleOf": True}}, "Expected f64 for 'multipleOf', got true"),
            ({"type": "json", "value": {"$ref": "#/nothing"}}, "'/nothing' does not exist"),
            ({"type": "json", "value": {"$ref": "https://example.com/a.json"}}, "is not present"),
            ({"type": "json", "value": {"not": {}}}, 'Unimplemented keys: ["not"]'),
            ({"type": "json", "value": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}}, "no text"),
            ({"type": "json", "value": {"type": "string", "minLength": 2, "maxLength": 1}}, "Unsatisfiable"),
            ({"type": "regex", "value": "(("}, "unclosed group"),
            ({"type": "regex", "value": "(a{1,1000}){1,1000}"}, "too many expressions"),
            ({"type": "json", "value": 7}, "must be a JSON schema"),
            ({"type": "json", "value": False}, "must be a JSON schema"),
            ({"type": "json", "value": {"const": "<|endoftext|>"}}, "is a special token of this model"),
            ({"type": "choice", "value": ["a", "x<|endoftext|>y"]}, "is a special token of this model"),
            ({"type": "json_schema", "value": COLOUR}, "must be a JSON schema"),
            ({"type": "regex", "value": None}, "must be a regular expression"),
            ({"type": "choice", "value": []}, "must be a list of texts"),
            ({"type": "choice", "value": ["a", 1]}, "must be a list of texts"),
            ({"type": "choice", "value": ["a" * MOST_BYTES]}, "must have at most"),
            ({"type": "json", "value": {"description": "a" * MOST_BYTES}}, "must have at most"),
            ({"type": "lark", "value": "start: A"}, "must be one of json, json_schema, regex, choice"),
            ({"value": {}}, "must be one of"),
        ):
            with self.subTest(grammar):
                error = self.refuse(grammar)
                self.assertTrue(error.message.startswith("parameters.grammar"), error.message)
                self.assertIn(reason, error.message)
                self.assertTrue(error.field.startswith("parameters.grammar"))

    def test_numbers_that_would_be_changed_are_refused(self) -> None:
        large, engine = 2**53 + 1, decoders.engine("Llama")
        for schema in (
            {"const": large},
            {"enum": [1, {"a": [-large]}]},
            {"type": "integer", "minimum": large},
            {"properties": {"a": {"type": "integer", "exclusiveMaximum": large}}},
            {"anyOf": [{"type": "integer", "multipleOf": large}]},
        ):
            with self.subTest(schema):
                error = self.refuse({"type": "json", "value": schema})
                self.assertIn("9007199254740993, which llguidance would change; send integers from -", error.message)
                self.assertEqual(error.field, "parameters.grammar.value")
        self.assertIn("has the integer 1000", self.refuse({"type": "json", "value": {"maximum": 10**400}}).message)
        error = self.refuse({"type": "json", "value": '{"const": 1e999}'})
        self.assertIn("has a number that no float holds", error.message)
        for value in (2**53 - 1, 1 - 2**53, 0.1, 1e22):
            given = {**GREEDY, "grammar": {"type": "json", "value": {"const": value, "default": large}}}
            [[answer]] = engine.predict(["a"], given)
            self.assertEqual(json.loads(answer["generated_text"]), value)

    def test_what_would_be_compiled_for_minutes_is_refused(self) -> None:
        one, other = ({"type": "integer", "multipleOf": number} for number in (9973, 9972))
        definitions = {"one": {"properties": {"a": one}}, "other": {"properties": {"a": other}}}
        merged = [{"$ref": f"#/$defs/{name}"} for name in definitions]
        soon = functools.partial(compile_trial.is_compiled_soon, cpu_s=1)
        with patch.object(compile_trial, "is_compiled_soon", soon):
            for schema in (
                {"type": "integer", "multipleOf": 9_999_999},
                {"type": "integer", "multipleOf": 97_000_000, "minimum": 0, "maximum": 2**53 - 1},
                {"anyOf": [one, other]},
                {"properties": {"a": one}, "patternProperties": {"^a": other}},
                {"$defs": definitions, "allOf": merged},
            ):
                with self.subTest(schema):
                    error = self.refuse({"type": "json", "value": schema})
                    self.assertIn("takes llguidance more than 2 s or 1 GiB to compile", error.message)

    def test_the_trial_of_a_grammar_ends_at_its_limits(self) -> None:
        number = {"type": "integer", "multipleOf": 97_000_000, "minimum": 0, "maximum": 2**53 - 1}
        source = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(number))
        self.assertFalse(compile_trial.is_compiled_soon(source, 600, 2**27))
        with self.assertRaises(RuntimeError) as caught:
            compile_trial.is_compiled_soon(source, 2**70)
        self.assertIn("OverflowError", str(caught.exception))

    def test_what_is_compiled_soon_is_not_refused(self) -> None:
        optional = {"anyOf": [{"type": "string"}, {"type": "null"}]}
        parts = [
            {"properties": {f"{part}{count}": optional for count in range(5)}, "required": [f"{part}0"]}
            for part in "ab"
        ]
        numbers = {f"p{count}": {"type": "number", "multipleOf": 0.25, "minimum": 0} for count in range(4)}
        limits = {"ms": {"type": "integer", "multipleOf": 1_000_000}, "age": {"type": "integer", "minimum": 0}}
        fives = {f"p{count}": {"type": "integer", "multipleOf": 5} for count in range(8)}
        patterns = {f"p{count}": {"type": "string", "pattern": f"^a{count}$"} for count in range(9)}
        steps = {f"p{number}": {"type": "integer", "multipleOf": number} for number in (128, 256, 512, 1000)}
        cents = [{"properties": {part: {"type": "number", "multipleOf": 0.01}}} for part in "ab"]
        nest: dict[str, Any] = {"$anchor": "nest"}
        for _ in range(9):
            nest = {"type": "string", "pattern": "a", "anyOf": [nest, {"pattern": "b"}]}
        for schema in (
            {"type": "object", "allOf": parts},
            {"type": "object", "allOf": cents},
            {"type": "object", "properties": {"a": nest}},
            {"type": "string", "allOf": [{"anyOf": [{"minLength": 1}, {"minLength": 2}]}] * 9},
            {"$ref": "#/const/0", "const": [{"multipleOf": 499_990}]},
            *({"type": "object", "properties": each} for each in (numbers, limits, steps)),
            *({"type": "object", "allOf": [{"properties": each}]} for each in (fives, patterns)),
            *(
                {"type": "number", "multipleOf": number}
                for number in (1, 7, 60, 86_400, 7_000_000, 0.01, 0.25, 1234.567)
            ),
        ):
            with self.subTest(schema):
                given = {**GREEDY, "grammar": {"type": "json", "value": schema}}
                self.assertTrue(decoders.engine("Llama").predict(["a"], given))

    def test_what_only_describes_may_have_special_tokens(self) -> None:
        engine, text = decoders.engine("Llama"), "such as <|endoftext|>"
        described = {"title": text, "description": text, "default": text, "examples": [text]}
        kept = {"components": {"schemas": {"title": {"type": "integer"}}}, "$ref": "#/components/schemas/title"}
        for schema in (
            {"type": "object", "properties": {"a": {"type": "integer", **described}}},
            {**described, **kept},
        ):
            with self.subTest(schema):
                self.assertTrue(engine.predict(["a"], {**GREEDY, "grammar": {"type": "json", "value": schema}}))

    def test_a_property_may_have_the_name_of_a_keyword(self) -> None:
        properties = {f"{name}{count}": {"pattern": "a"} for name in ("a", "b") for count in range(5)}
        for schema in ({"properties": {"allOf": {"properties": properties}}}, {"default": {"allOf": [properties]}}):
            given = {**GREEDY, "grammar": {"type": "json", "value": {"type": "integer", **schema}}}
            [[answer]] = decoders.engine("Llama").predict(["a"], given)
            self.assertIsInstance(json.loads(answer["generated_text"]), int)

    def test_deeply_nested_schemas_are_refused(self) -> None:
        nested: dict[str, Any] = {}
        for _ in range(500):
            nested = {"items": nested}
        self.assertIn("is nested too deeply", self.refuse({"type": "json", "value": nested}).message)

    def test_parameters_that_leave_no_token_are_refused(self) -> None:
        error = self.refuse({"type": "choice", "value": ["ab"]}, min_new_tokens=5)
        self.assertIn("leave no token", error.message)

    def test_it_fails_alone_in_an_open_batch(self) -> None:
        engine = decoders.engine("Llama")
        collector = ProgressCollector(engine.stepper)
        engine.stepper.join("good", "hello", {**GREEDY, "max_new_tokens": 8}, seed=0)
        forbidden = {**GREEDY, "min_new_tokens": 5, "grammar": {"type": "choice", "value": ["ab"]}}
        engine.stepper.join("bad", "a", forbidden, seed=0)
        collector.all()
        self.assertIsInstance(collector.answers["bad"], InvalidInput)
        self.assertEqual(collector.answers["good"], engine.predict(["hello"], {**GREEDY, "max_new_tokens": 8})[0])


class ProcessorTests(unittest.TestCase):
    def setUp(self) -> None:
        self.tokenizer = tiny_models.byte_tokenizer()
        self.ends = [self.tokenizer.eos_token_id]

    def test_each_row_follows_its_own(self) -> None:
        grammars = Grammars(self.tokenizer, vocabulary=len(self.tokenizer), ends=self.ends)
        scores = torch.zeros(2, len(self.tokenizer))
        [a, b, c] = self.tokenizer.encode("abc", add_special_tokens=False)
        processor = grammars.make_processor({"type": "regex", "value": "a(b|c)"}, prompt=1)
        first = processor(torch.tensor([[0], [0]]), scores)
        self.assertEqual([row.isfinite().nonzero().flatten().tolist() for row in first], [[a], [a]])
        second = processor(torch.tensor([[0, a], [0, b]]), scores)
        self.assertEqual(second[0].isfinite().nonzero().flatten().tolist(), sorted([b, c]))
        self.assertTrue(second[1].isfinite().all(), "behind a stop string is padding, and a beam may be given up")
        back = processor(torch.tensor([[0, a, b], [0, a, c]]), scores)
        self.assertEqual([row.isfinite().nonzero().flatten().tolist() for row in back], [self.ends, self.ends])

    def test_a_special_token_is_never_text(self) -> None:
        tokenizer = tiny_models.byte_tokenizer("<|call|>")
        grammars = Grammars(tokenizer, vocabulary=len(tokenizer), ends=self.ends)
        special = set(read_special_tokens(tokenizer).values())
        scores = torch.zeros(1, len(tokenizer))

        def choose_first_tokens(regex: str) -> str:
            processor, tokens = grammars.make_processor({"type": "regex", "value": regex}, prompt=0), list[int]()
            while tokens[-1:] != self.ends:
                [row] = processor(torch.tensor([tokens], dtype=torch.long), scores)
                allowed = set(row.isfinite().nonzero().flatten().tolist())
                if not re.fullmatch(regex, tokenizer.decode(tokens)):
                    self.assertTrue(special.isdisjoint(allowed), tokens)
                tokens.append(min(allowed - special, default=self.ends[0]))
            return str(tokenizer.decode(tokens[:-1]))

        self.assertEqual(choose_first_tokens("(<[|]call[|]>|b)"), "<|call|>")
        for regex in ("<[|]call[|]>", "a<[|]endoftext[|]>", ".<[|]endoftext[|]>."):
            with self.subTest(regex), self.assertRaises(InvalidInput) as caught:
                choose_first_tokens(regex)
            self.assertIn("asks for a special token of this model as text", caught.exception.message)

    def test_a_grammar_is_as_good_after_many_answers(self) -> None:
        grammars = Grammars(self.tokenizer, vocabulary=len(self.tokenizer), ends=self.ends)
        rng, letters = random.Random(1), self.tokenizer.encode("abcdef", add_special_tokens=False)
        scores = torch.zeros(1, len(self.tokenizer))
        for _ in range(40):
            processor = grammars.make_processor({"type": "regex", "value": "[a-f]*a[a-f]{30}b[a-f]*"}, prompt=0)
            tokens: list[int] = []
            for _ in range(60):
                processor(torch.tensor([tokens], dtype=torch.long), scores)
                tokens.append(rng.choice(letters))

    def test_rows_that_have_used_up_the_states_that_they_share_have_new_ones(self) -> None:
        scores = torch.zeros(2, len(self.tokenizer))
        letters = self.tokenizer.encode("abcdef", add_special_tokens=False)
        with patch.object(compile_trial, "MOST_STATES", 300):
            grammars, rng = Grammars(self.tokenizer, vocabulary=len(self.tokenizer), ends=self.ends), random.Random(1)
            grammar = {"type": "regex", "value": "[a-f]*a[a-f]{30}b[a-f]*"}
            processor, rows = grammars.make_processor(grammar, prompt=0), [list[int](), list[int]()]
            with patch.object(llguidance, "LLMatcher", wraps=llguidance.LLMatcher) as compiled:
                for _ in range(60):
                    found = processor(torch.tensor(rows, dtype=torch.long), scores)
                    self.assertTrue(found[:, letters].isfinite().all())
                    self.assertEqual(found[:, self.tokenizer.encode("g")].isfinite().sum(), 0)
                    rows = [[*row, rng.choice(letters)] for row in rows]
            self.assertIn(compiled.call_count, range(1, 20))
            with self.assertRaises(InvalidInput) as caught:
                for _ in range(300):
                    processor(torch.tensor(rows, dtype=torch.long), scores)
                    rows = [[*row, rng.choice(letters)] for row in rows]
            self.assertIn("too many states", caught.exception.message)

    def test_a_grammar_is_compiled_and_refused_once(self) -> None:
        grammars = Grammars(self.tokenizer, vocabulary=len(self.tokenizer), ends=self.ends)
        with patch.object(llguidance, "LLMatcher", wraps=llguidance.LLMatcher) as compiled:
            processors = [grammars.make_processor({"type": "regex", "value": "a(b|c)"}, prompt=0) for _ in range(3)]
            processors[0](torch.zeros(5, 0, dtype=torch.long), torch.zeros(5, len(self.tokenizer)))
            self.assertEqual(compiled.call_count, 1)
            for _ in range(3):
                with self.assertRaises(InvalidInput):
                    grammars.make_processor({"type": "regex", "value": "(("}, prompt=0)
            self.assertEqual(compiled.call_count, 2)
            for value in map(str, range(MOST_MATCHERS)):
                grammars.make_processor({"type": "regex", "value": value}, prompt=0)
            grammars.make_processor({"type": "regex", "value": "a(b|c)"}, prompt=0)
            self.assertEqual(compiled.call_count, 3 + MOST_MATCHERS)

    def test_a_grammar_that_fails_for_other_reasons_is_not_compiled_anew(self) -> None:
        grammars = Grammars(self.tokenizer, vocabulary=len(self.tokenizer), ends=self.ends)
        grammar = {"type": "json", "value": {"properties": {f"p{count}": {} for count in range(1500)}}}
        scores, start = torch.zeros(1, len(self.tokenizer)), self.tokenizer.encode('{"', add_special_tokens=False)
        with patch.object(llguidance, "LLMatcher", wraps=llguidance.LLMatcher) as compiled:
            for _ in range(3):
                processor = grammars.make_processor(grammar, prompt=0)
                with self.assertRaises(InvalidInput) as caught:
                    processor(torch.tensor([start]), scores)
                self.assertIn("max is 2000", caught.exception.message)
            self.assertEqual(compiled.call_count, 1)

    def test_a_model_without_an_end_of_its_texts_has_none(self) -> None:
        with self.assertRaises(InvalidInput) as caught:
            Grammars(self.tokenizer, vocabulary=300, ends=[]).make_processor({"type": "regex", "value": "a"}, prompt=1)
        self.assertIn("is not served by this model", caught.exception.message)
