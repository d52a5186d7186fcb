"""Responses: what is asked of the model, and the events that a client reads on from any number."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from django.test import SimpleTestCase, override_settings

from api.answers.responses import events
from api.answers.responses.response import make_response, read_messages
from api.requests.dialects.generation import completions, responses
from inference.catalog.sizes.lengths import NONE, RESPONSE_FIELDS, estimate_length
from inference.engines.inputs.task_inputs import read_messages as read_messages_of_chat
from inference.errors import InvalidInput
from inference.models import Job, Status
from inference.streams.events import Delta, End, Event, Interrupted, KeepAlive, Restart
from tests.api.test_completions import HELLO, MODELS_FILE, PIPELINE, call
from tests.api.test_tool_calls import NAMES, NESTED, TAGGED

TOOL = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}


class ReadTests(SimpleTestCase):
    def read(self, **fields: Any) -> responses.ResponseRequest:
        return responses.read_response_request({"input": "hello", **fields}, PIPELINE)

    def test_the_input_is_a_text_or_messages_with_calls_and_results(self) -> None:
        parts = [{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}]
        calls = [
            {
                "type": "function_call",
                "call_id": f"call_{name}",
                "name": name,
                "arguments": "{}",
                "id": "fc",
                "status": "",
            }
            for name in NAMES
        ]
        read = {name: call(name, "{}") for name in NAMES}
        for each in read.values():
            each["function"]["arguments"] = {}
        table: list[tuple[Any, list[Any]]] = [
            ("hello", HELLO),
            ([{"type": None, "role": "user", "content": "hello", "id": None}], HELLO),
            ([*HELLO, {"role": "assistant", "content": []}], [*HELLO, {"role": "assistant", "content": ""}]),
            ([{"role": "user", "content": "hello"}], HELLO),
            ([{"type": "message", "role": "developer", "content": parts}], [{"role": "system", "content": "a\nb"}]),
            (
                [{"role": "assistant", "content": "I ask."}, *calls, {
                    "type": "function_call_output", "call_id": "call_g", "output": "1"
                }],
                [
                    {"role": "assistant", "content": "I ask.", "tool_calls": list(read.values())},
                    {"role": "tool", "content": "1", "tool_call_id": "call_g", "name": "g"},
                ],
            ),
            (calls, [{"role": "assistant", "content": "", "tool_calls": list(read.values())}]),
        ]  # fmt: skip
        for given, expected in table:
            with self.subTest(given):
                self.assertEqual(self.read(input=given).submission.inputs, expected)

    def test_the_error_of_an_unknown_field_names_each_field_that_is_served_once(self) -> None:
        with self.assertRaises(InvalidInput) as caught:
            self.read(qqqq=1)
        names = caught.exception.message.partition("known are ")[2].rstrip(".").split(", ")
        self.assertEqual(len(names), len(set(names)), names)
        self.assertLessEqual({"input", "top_p", "top_k"}, {*names})
        self.assertFalse({*names} & {*completions.PROMPT, *completions.OWN, "logprobs"})

    def test_instructions_come_first_and_are_not_kept_for_the_next_one(self) -> None:
        before = [{"role": "user", "content": "earlier"}]
        requested = {"input": "hello", "instructions": "be kind", "previous_response_id": "resp_1"}
        inputs = responses.read_response_request(requested, PIPELINE, before=before).submission.inputs
        self.assertEqual([message["content"] for message in inputs], ["be kind", "earlier", "hello"])
        job = Job(
            model="m", inputs=inputs, status=Status.SUCCEEDED, output=[{"generated_text": "yes"}], prompt_length=0
        )
        self.assertEqual([message["content"] for message in read_messages(job)], ["earlier", "hello", "yes"])

    def test_settings_are_those_of_a_chat(self) -> None:
        schema = {"type": "object"}
        chat = {"type": "function", "function": {name: value for name, value in TOOL.items() if name != "type"}}
        table: list[tuple[dict[str, Any], dict[str, Any]]] = [
            ({"max_output_tokens": 5}, {"max_new_tokens": 5}),
            ({"temperature": 0.5}, {"do_sample": True, "temperature": 0.5}),
            ({"text": {"format": {"type": "text"}, "verbosity": "medium"}}, {}),
            ({"text": {"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}}},
             {"grammar": {"type": "json", "value": schema}}),
            ({"tools": [TOOL], "tool_choice": "auto"}, {"tools": [chat]}),
            ({"tools": [TOOL], "tool_choice": "none"}, {}),
            ({"store": False, "include": [], "truncation": "disabled", "max_tool_calls": 3,
              "reasoning": {"effort": None, "summary": None}, "prompt_cache_key": "x"}, {}),
        ]  # fmt: skip
        for fields, expected in table:
            with self.subTest(fields):
                parameters = dict(self.read(**{"max_output_tokens": 7, **fields}).submission.parameters)
                found = {"max_new_tokens": 7, **expected, "return_full_text": False, "details": True}
                self.assertEqual(parameters, found)
        named = self.read(tools=[TOOL], tool_choice={"type": "function", "name": "f"})
        self.assertIn("grammar", named.submission.parameters)
        self.assertEqual(named.translate_field_names("parameters.max_new_tokens: no"), "max_new_tokens: no")
        limited = self.read(max_output_tokens=5)
        self.assertEqual(limited.translate_field_names("parameters.max_new_tokens: no"), "max_output_tokens: no")
        self.assertEqual(limited.translate_field_names("inputs: no"), "input: no")

    def test_a_response_repeats_fields_of_its_request_that_its_job_keeps(self) -> None:
        named = {"type": "function", "name": "f"}
        form = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}
        fields: dict[str, Any] = {
            "metadata": {"a" * 64: "b" * 512}, "user": "me", "temperature": 0, "instructions": "be kind",
        }  # fmt: skip
        table: list[dict[str, Any]] = [
            {"tools": [TOOL], "tool_choice": named, "parallel_tool_calls": False, "top_p": 0.5},
            {"text": form, "top_p": 0.0},
        ]
        for more in table:
            with self.subTest(more):
                requested = self.read(**fields, **more)
                received = {name: value for name, value in {**fields, **more}.items() if name != "tools"}
                job = Job(model="m", inputs=requested.submission.inputs, parameters=requested.submission.parameters)
                shown = make_response(job)
                self.assertEqual({name: shown[name] for name in received}, received)
                self.assertEqual(make_response(job, requested.repeated), shown)
        chat = Job(model="m", inputs=HELLO, parameters={"tools": [{"function": {"name": "f"}}], "grammar": {}})
        self.assertEqual(make_response(chat)["tool_choice"], "required")
        self.assertEqual(self.read(metadata={}, tool_choice="auto", temperature=1, user=None).submission.inputs, HELLO)

    def test_what_is_repeated_is_neither_read_nor_measured_nor_followed(self) -> None:
        requested = self.read(metadata={"a": "b" * 512})
        (message,) = requested.submission.inputs
        self.assertEqual(message, {**HELLO[0], RESPONSE_FIELDS: {"metadata": {"a": "b" * 512}}})
        self.assertEqual(read_messages_of_chat(requested.submission.inputs, images=None), HELLO)
        self.assertEqual(estimate_length(PIPELINE, requested.submission.inputs), estimate_length(PIPELINE, HELLO))
        hidden = [{**HELLO[0], "content": [{"type": "text", RESPONSE_FIELDS: "word " * 1000}]}, *HELLO]
        self.assertGreaterEqual(
            estimate_length(PIPELINE, hidden), 1000, "only the field of the last message is no text"
        )
        output = [{"generated_text": "yes"}]
        job = Job(
            model="m", inputs=requested.submission.inputs, status=Status.SUCCEEDED, output=output, prompt_length=0
        )
        self.assertEqual(read_messages(job)[:-1], HELLO)

    def test_what_is_not_served_is_refused_in_the_client_s_words(self) -> None:
        for fields, field in (
            ({"input": None}, "input"),
            ({"input": []}, "input"),
            ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
            ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
            ({"input": [*HELLO, {"role": "nobody", "content": "x"}]}, "input[1].role"),
            ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].call_id"),
            ({"instructions": 1}, "instructions"),
            ({"previous_response_id": "resp_1"}, "previous_response_id"),
            ({"conversation": "c"}, "conversation"),
            ({"include": ["message.output_text.logprobs"]}, "include"),
            ({"reasoning": {"effort": "low"}}, "reasoning"),
            ({"truncation": "auto"}, "truncation"),
            ({"tools": [{"type": "web_search"}]}, "tools[0]"),
            ({"text": {"format": {"type": "xml"}}}, "text.format"),
            ({"text": "x"}, "text"),
            ({"nonsense": 1}, "nonsense"),
            ({"background": 1}, "background"),
            ({"n": 2}, "n"),
            ({"messages": HELLO}, "messages"),
            ({"max_tokens": 3}, "max_tokens"),
            ({"response_format": {"type": "json_object"}}, "response_format"),
            ({"include": {}}, "include"),
            ({"metadata": ["a"]}, "metadata"),
            ({"metadata": {"a": 1}}, "metadata"),
            ({"metadata": {"a" * 65: "b"}}, "metadata"),
            ({"metadata": {"a": "b" * 513}}, "metadata"),
            ({"user": "u" * 513}, "user"),
            ({"metadata": dict.fromkeys(map(str, range(17)), "a")}, "metadata"),
            ({"user": 1}, "user"),
            ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
            ({"text": {"typo": 5}}, "text.typo"),
            ({"text": {"verbosity": "low"}}, "text.verbosity"),
            ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
            ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
            (
                {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "["}]},
                "input[0].arguments",
            ),
            ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0]"),
        ):
            with self.subTest(fields), self.assertRaises(InvalidInput) as caught:
                self.read(**fields)
            self.assertEqual(caught.exception.field, field)


@override_settings(MODELS_FILE=MODELS_FILE)
class EventTests(SimpleTestCase):
    TEXT = f"I ask. {TAGGED} {TAGGED.replace('f', 'g', 1)}"

    def make_job(self, text: str = "", reason: str = "eos_token", **values: Any) -> Job:
        tools = [{"type": "function", "function": {"name": name}} for name in NAMES]
        details = {"finish_reason": reason, "prompt_tokens": 2, "generated_tokens": 3}
        fields = {"status": Status.SUCCEEDED, "output": [{"generated_text": text, "details": details}], **values}
        return Job(model="prompts", inputs=HELLO, parameters={"tools": tools, "return_full_text": False}, **fields)

    def write(
        self, job: Job, text: str, size: int, after: int = events.BEGINNING, repeated: Mapping[str, Any] = NONE
    ) -> list[Any]:
        def list_events() -> Iterator[Event]:
            for start in range(0, len(text), size):
                yield Delta(text=text[start : start + size], id="x")
            yield End(job=job, text=text, id="x")

        return self.read(events.write_response_events(job, list_events(), repeated=repeated, after=after))

    def read(self, pieces: Iterable[bytes]) -> list[Any]:
        """Return the data of events, each of which has its type for its name."""
        found = []
        for block in filter(None, b"".join(pieces).decode().split("\n\n")):
            if not block.startswith(":"):
                name, data = block.split("\n")
                found.append(json.loads(data.removeprefix("data: ")))
                self.assertEqual(name, f"event: {found[-1]['type']}")
        return found

    def join(self, shown: Iterable[Any]) -> tuple[list[str], dict[str, str], list[str]]:
        """Return the kinds of the events without deltas, what the deltas of each item make, and the items' ends."""
        shown, deltas = list(shown), dict[str, str]()
        for event in shown:
            if event["type"].endswith(".delta"):
                deltas[event["item_id"]] = deltas.get(event["item_id"], "") + event["delta"]
        kinds = [event["type"] for event in shown if not event["type"].endswith(".delta")]
        done = [event["item"] for event in shown if event["type"] == "response.output_item.done"]
        return kinds, deltas, [json.dumps(item, sort_keys=True) for item in done]

    def test_a_stream_has_what_the_whole_response_has(self) -> None:
        job = self.make_job(self.TEXT)
        whole = make_response(job)
        self.assertEqual([item["type"] for item in whole["output"]], ["message", "function_call", "function_call"])
        self.assertEqual(whole["output"][1]["arguments"], NESTED)
        for size in (1, 3, 1000):
            with self.subTest(size):
                shown = self.write(job, self.TEXT, size)
                self.assertEqual(shown[-1]["response"], whole)
                _, deltas, done = self.join(shown)
                self.assertEqual([json.loads(item) for item in done], whole["output"])
                self.assertEqual(list(deltas.values()), ["I ask.", NESTED, NESTED])

    def test_numbers_rise_and_a_stream_is_read_on_from_any(self) -> None:
        job = self.make_job(self.TEXT)
        shown = self.write(job, self.TEXT, 3)
        numbers = [event["sequence_number"] for event in shown]
        self.assertEqual(numbers, sorted(set(numbers)))
        whole = self.join(shown)
        for place in range(len(shown)):
            for size in (2, 1000):
                with self.subTest(place, size=size):
                    rest = self.write(job, self.TEXT, size, numbers[place])
                    self.assertEqual(self.join([*shown[: place + 1], *rest]), whole)
        self.assertEqual(self.write(job, self.TEXT, 3, numbers[-1]), [])

    def test_how_it_ended_is_its_status(self) -> None:
        for job, status, kind in (
            (self.make_job("hello"), "completed", "response.completed"),
            (self.make_job("hello", "length"), "incomplete", "response.incomplete"),
            (self.make_job("", "eos_token"), "completed", "response.completed"),
            (self.make_job(status=Status.FAILED, output=None, error_code="failed"), "failed", "response.failed"),
            (self.make_job(status=Status.CANCELLED, output=None), "cancelled", "response.failed"),
            (self.make_job(status=Status.EXPIRED, output=None), "failed", "response.failed"),
        ):
            with self.subTest(status):
                *_, last = self.write(job, "hello" if status == "incomplete" else "", 3)
                self.assertEqual((last["type"], last["response"]["status"]), (kind, status))
        for status, shown in ((Status.QUEUED, "queued"), (Status.RUNNING, "in_progress")):
            self.assertEqual(make_response(self.make_job(status=status, output=None))["status"], shown)

    def test_a_stream_that_is_cut_or_begins_again_says_so(self) -> None:
        job = self.make_job("hello")
        for event, code in ((Restart(id="x"), "restart"), (Interrupted(), "cut")):
            came = iter([Delta(text="h", id="x"), KeepAlive(), event])
            pieces = events.write_response_events(job, came, repeated={})
            *_, error = shown = self.read(pieces)
            self.assertEqual(error["code"], code)
            rest = self.write(job, "hello", 2, error["sequence_number"])
            self.assertEqual(self.join([*shown[:-1], *rest])[1:], self.join(self.write(job, "hello", 5))[1:])

    def test_items_are_in_the_order_of_the_text(self) -> None:
        text = f"a {TAGGED} bye"
        job = self.make_job(text)
        whole = make_response(job)["output"]
        self.assertEqual([item["type"] for item in whole], ["message", "function_call", "message"])
        *_, done = self.join(self.write(job, text, 2))
        self.assertEqual([json.loads(item) for item in done], whole)

    def test_the_error_of_a_job_is_in_the_client_s_words(self) -> None:
        grammar: dict[str, Any] = {"type": "json", "value": {}}
        table: list[tuple[dict[str, Any], str]] = [
            ({"grammar": grammar}, "text.format"),
            ({"tools": [], "grammar": grammar}, "tools"),
            ({"tools": [], "grammar": {**grammar, "calls": {}}}, "text.format"),
        ]
        for parameters, word in table:
            job = self.make_job(status=Status.FAILED, output=None, error_code="invalid_input")
            job.error_detail, job.parameters = "parameters.grammar: is refused.", parameters
            self.assertEqual(make_response(job)["error"]["message"], f"{word}: is refused.")
