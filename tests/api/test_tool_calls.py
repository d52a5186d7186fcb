"""The calls of tools in an answer, whole and in a stream that may be read on from any of its chunks."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from typing import Any

from django.test import SimpleTestCase, override_settings

from api.answers.completions import chunks, completion
from api.answers.completions.completion import CHAT, TEXT
from api.answers.completions.tool_calls import OPEN, Arguments, Part, Text, ToolCall, ToolCallReader
from api.requests.dialects.generation.tools import CLOSE
from inference.models import Job, Status
from inference.streams.events import Delta, End, Event
from inference.streams.positions import BEGINNING, DeliveredText, Position
from tests.api.test_completion_chunks import documents
from tests.api.test_completions import HELLO, MODELS_FILE

NAMES = ("f", "g")
TAGGED = '<tool_call>\n{"name": "f", "arguments": {"a": "}{\\"", "b": {"c": 1}}}\n</tool_call>'
NESTED = '{"a": "}{\\"", "b": {"c": 1}}'


PIECES = (
    OPEN, CLOSE, "<tool", "\x1c", "{", "}", '"name": "f"', '"name": "h"', ", ", '"arguments": ', " ", "\n", "x", ";",
    '"', TAGGED,
)  # fmt: skip


def read_in_pieces(text: str, size: int) -> list[Part]:
    """Return the parts of an answer that comes in pieces of so many characters; neighbours of a kind are one."""
    reader, parts = ToolCallReader(NAMES), list[Part]()
    for start in range(0, len(text), size):
        parts += reader.read_text(text[start : start + size])
    found = list[Part]()
    for part in parts + reader.end_text():
        match (found[-1] if found else None, part):
            case (Text(before), Text(more)):
                found[-1] = Text(before + more)
            case (Arguments(index, before), Arguments(_, more)):
                found[-1] = Arguments(index, before + more)
            case _:
                found.append(part)
    return found


class ReaderTests(SimpleTestCase):
    def test_parts_are_the_same_in_pieces_of_any_size(self) -> None:
        table: list[tuple[str, list[Part]]] = [
            ("", []),
            ("  ", [Text("  ")]),
            ("hello { there", [Text("hello { there")]),
            (TAGGED, [ToolCall(0, "f"), Arguments(0, NESTED)]),
            (f"I ask. {TAGGED}\n", [Text("I ask."), ToolCall(0, "f"), Arguments(0, NESTED)]),
            (
                f'{TAGGED}\n<tool_call>{{"arguments": {{"x": 1}}, "name": "g"}}</tool_call> Done.',
                [ToolCall(0, "f"), Arguments(0, NESTED), ToolCall(1, "g"), Arguments(1, '{"x": 1}'), Text(" Done.")],
            ),
            ('{"name": "f", "parameters": {}}', [ToolCall(0, "f"), Arguments(0, "{}")]),
            (
                '{\n  "name": "f",\n  "arguments": {}\n}\n{"name": "g", "arguments": {}} ',
                [ToolCall(0, "f"), Arguments(0, "{}"), ToolCall(1, "g"), Arguments(1, "{}")],
            ),
            # what ends in the middle
            ('{"name": "f", "arguments": {"a": 1', [ToolCall(0, "f"), Arguments(0, '{"a": 1')]),
            ('<tool_call>{"name": "f", "arguments": {}', [ToolCall(0, "f"), Arguments(0, "{}")]),
            ('<tool_call>{"name": "f", "arguments": {}}', [ToolCall(0, "f"), Arguments(0, "{}")]),
            ('{"na', [Text('{"na')]),
            ("one <tool", [Text("one <tool")]),
            (
                '{"name": "f", "arguments": {}, "id": 1}; {"name": "g", "arguments": {}}',
                [ToolCall(0, "f"), Arguments(0, "{}"), ToolCall(1, "g"), Arguments(1, "{}")],
            ),
            ('{"arguments": {"a": "\\ud800"}, "name": "f"}', [ToolCall(0, "f"), Arguments(0, '{"a": "\\ud800"}')]),
            ('{"arguments": "{\\"a\\": 1}", "name": "f"}', [ToolCall(0, "f"), Arguments(0, '{"a": 1}')]),
            # what is no call
            (
                '{"arguments": {"a": "' + 500 * "x" + '"}, "name": "f"}',
                [Text('{"arguments": {"a": "' + 500 * "x" + '"}, "name": "f"}')],
            ),
            (
                "{" + 500 * " " + '"name": "f", "arguments": {}}',
                [Text("{" + 500 * " " + '"name": "f", "arguments": {}}')],
            ),
            ("x  <tool_call>blah {", [Text("x  <tool_call>blah {")]),
            (
                '{"name": "h", "arguments": {}} \n<tool_call>{"name": "f", "arguments": {}}</tool_call>',
                [Text('{"name": "h", "arguments": {}}'), ToolCall(0, "f"), Arguments(0, "{}")],
            ),
            (f"<tool_call>rubbish {TAGGED}", [Text("<tool_call>rubbish"), ToolCall(0, "f"), Arguments(0, NESTED)]),
            (
                '<tool_call>{"name": "h", "arguments": {}}</tool_call> b',
                [Text('<tool_call>{"name": "h", "arguments": {}}</tool_call> b')],
            ),
            ('{"name": "other", "arguments": {}}', [Text('{"name": "other", "arguments": {}}')]),
            ('{"a": 1} and more', [Text('{"a": 1} and more')]),
            ("<tool_call>rubbish</tool_call> b", [Text("<tool_call>rubbish</tool_call> b")]),
            ('a {"name": "f", "arguments": {}}', [Text('a {"name": "f", "arguments": {}}')]),
        ]
        for text, expected in table:
            for size in (1, 2, 3, 7, 1000):
                with self.subTest(text, size=size):
                    self.assertEqual(read_in_pieces(text, size), expected)

    def test_many_blanks_are_held_back_and_come_with_what_follows(self) -> None:
        reader = ToolCallReader(NAMES)
        self.assertEqual(reader.read_text("a" + 100_000 * " "), [Text("a")])
        self.assertEqual(reader.read_text("b"), [Text(100_000 * " " + "b")])

    def test_so_many_false_tags_are_looked_at(self) -> None:
        text = f"{OPEN} " * 20_000 + TAGGED
        self.assertEqual(read_in_pieces(text, len(text)), [Text(text)])

    def test_random_texts_have_the_same_parts_in_any_pieces(self) -> None:
        chosen = random.Random(7)
        for _ in range(3000):
            text = "".join(chosen.choice(PIECES) for _ in range(chosen.randrange(14)))
            whole = read_in_pieces(text, 1000)
            for size in (1, 2, 5):
                with self.subTest(text, size=size):
                    self.assertEqual(read_in_pieces(text, size), whole)

    def test_a_long_answer_that_begins_as_an_object_is_not_held_back_for_ever(self) -> None:
        reader = ToolCallReader(NAMES)
        self.assertEqual(reader.read_text('{"a": "'), [])
        self.assertNotEqual(reader.read_text("x" * 500), [])
        self.assertEqual(reader.read_text("y"), [Text("y")])


@override_settings(MODELS_FILE=MODELS_FILE)
class AnswerTests(SimpleTestCase):
    TEXT = f"I ask. {TAGGED}"

    def make_job(self, text: str, reason: str = "eos_token") -> Job:
        tools = [{"type": "function", "function": {"name": name}} for name in NAMES]
        output = [{"generated_text": text, "details": {"finish_reason": reason}}]
        return Job(
            model="prompts",
            inputs=HELLO,
            parameters={"tools": tools, "return_full_text": False},
            status=Status.SUCCEEDED,
            output=output,
        )

    def write_chunks(self, job: Job, text: str, size: int, after: Position = BEGINNING) -> list[Any]:
        def list_events() -> Iterable[Event]:
            sent = DeliveredText()
            for start in range(0, len(text), size):
                sent.add_text(piece := text[start : start + size])
                yield Delta(text=piece, id=sent.position.make_event_id(job.id))
            yield End(job=job, text=text, id=sent.position.make_event_id(job.id))

        return documents(chunks.write_completion_chunks(job, iter(list_events()), kind=CHAT, after=after))

    def join(self, written: Iterable[Any]) -> tuple[str, list[dict[str, Any]], str | None]:
        """Return the text, the calls and the end of an answer, as clients put its chunks together."""
        written = json.loads(json.dumps(written))
        words, calls, ended = "", list[dict[str, Any]](), None
        for chunk in written:
            [choice] = chunk["choices"]
            words += choice["delta"].get("content", "")
            for part in choice["delta"].get("tool_calls", ()):
                function = part.pop("function")
                if part.pop("index") == len(calls):
                    calls.append({**part, "function": {"name": function["name"], "arguments": ""}})
                calls[-1]["function"]["arguments"] += function["arguments"]
            ended = choice["finish_reason"]
        return words, calls, ended

    def test_calls_are_beside_the_text(self) -> None:
        job = self.make_job(self.TEXT)
        [choice] = completion.make_completion(CHAT, job)["choices"]
        [call] = choice["message"]["tool_calls"]
        self.assertEqual(choice["message"]["content"], "I ask.")
        self.assertEqual(call["function"], {"name": "f", "arguments": NESTED})
        self.assertEqual(choice["finish_reason"], "tool_calls")
        self.assertIsNone(completion.make_completion(CHAT, self.make_job(TAGGED))["choices"][0]["message"]["content"])

    def test_an_answer_without_a_call_is_as_without_tools(self) -> None:
        [choice] = completion.make_completion(CHAT, self.make_job("hello"))["choices"]
        self.assertEqual(choice["message"], {"role": "assistant", "content": "hello", "refusal": None})
        self.assertEqual(choice["finish_reason"], "stop")

    def test_a_call_that_the_limit_cut_says_so(self) -> None:
        [choice] = completion.make_completion(CHAT, self.make_job(TAGGED[:50], "length"))["choices"]
        self.assertEqual(choice["finish_reason"], "length")
        self.assertTrue(choice["message"]["tool_calls"])

    def test_a_completion_of_a_text_has_the_text_as_it_is(self) -> None:
        self.assertEqual(completion.make_completion(TEXT, self.make_job(self.TEXT))["choices"][0]["text"], self.TEXT)

    def test_a_stream_has_what_the_whole_answer_has(self) -> None:
        job = self.make_job(self.TEXT)
        whole = completion.make_completion(CHAT, job)["choices"][0]
        for size in (1, 3, 1000):
            words, calls, ended = self.join(self.write_chunks(job, self.TEXT, size))
            self.assertEqual((words, calls), (whole["message"]["content"], whole["message"]["tool_calls"]))
            self.assertEqual(ended, "tool_calls")

    def test_a_stream_is_read_on_from_any_chunk(self) -> None:
        for text in (
            self.TEXT,
            "hi <tool",
            '{"a": 1}\n',
            'x <tool_call>{"arguments": {}, "name": "f"}',
            "1e999}<<<tool",
            "<tool</tool_call>",
            f"<tool_call>rubbish {TAGGED}",
            '{"name": "g", "parameters": {}}  \x1c{"name": "g", "parameters": {}}',
        ):
            for size in (1, 3, 7, 1000):
                self.assert_read_on(self.make_job(text), text, size)

    def test_random_answers_are_read_on_from_any_chunk(self) -> None:
        chosen = random.Random(8)
        for _ in range(150):
            text = "".join(chosen.choice(PIECES) for _ in range(1 + chosen.randrange(10)))
            self.assert_read_on(self.make_job(text), text, chosen.randrange(1, 12))

    def assert_read_on(self, job: Job, text: str, size: int) -> None:
        written = self.write_chunks(job, text, size)
        whole = self.join(written)
        [choice] = completion.make_completion(CHAT, job)["choices"]
        self.assertEqual(whole[0], choice["message"]["content"] or "")
        for place in range(1, len(written)):
            after = Position.from_event_id(written[place]["event_id"], job.id)
            rest = self.write_chunks(job, text, 4, after)[1:]
            with self.subTest(text, place=place):
                self.assertEqual(self.join([*written[: place + 1], *rest]), whole)

    def test_calls_of_jobs_of_one_moment_have_ids_of_their_own(self) -> None:
        jobs = [self.make_job(TAGGED) for _ in range(100)]
        choices = [completion.make_completion(CHAT, job)["choices"][0] for job in jobs]
        self.assertEqual(len({choice["message"]["tool_calls"][0]["id"] for choice in choices}), 100)

    def test_tools_of_another_interface_are_what_they_are(self) -> None:
        others: list[list[Any]] = [[{"function": "x"}], [{}], [{"function": None}], ["x"]]
        for tools in others:
            job = self.make_job("hello")
            job.parameters = {"tools": tools}
            self.assertEqual(completion.make_completion(CHAT, job)["choices"][0]["message"]["content"], "hello")

    def test_another_text_begins_again(self) -> None:
        job = self.make_job(self.TEXT)
        after = Position.from_event_id(self.write_chunks(job, self.TEXT, 3)[5]["event_id"], job.id)
        for text in ("Something else entirely", "I"):
            *_, last = self.write_chunks(job, text, 4, after)
            self.assertEqual(last["error"]["code"], "restart")
