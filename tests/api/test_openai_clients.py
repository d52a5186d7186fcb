"""The unmodified clients of OpenAI over a socket, and the chats of Hugging Face's: a small model, a real worker.

Every example of docs/guide/openai.md in Python runs as it stands there.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import io
import json
import re
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import openai
import pydantic
from django.conf import settings
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessageParam

from inference.models import Status
from tests import javascript, tiny_models
from tests.conditions import PATIENCE_S
from tests.e2e.case import StackCase
from tests.ports import HOST
from tests.stack import Stack

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]
CONTEXT = 120  # tokens of `tiny`
TEMPLATED = "user: hello\n"  # by the template of the small model, a token a byte
MODELS = """
[tiny]
task = "text-generation"
model = "{folder}"
max_length = {context}

[ears]
task = "automatic-speech-recognition"
model = "{ears}"

[held]
engine = "tests.echo:EchoEngine"
task = "text-generation"
options = {{ gate = "held" }}
time_limit_s = 300

[unserved]
task = "text-generation"
model = "/no/such/folder"

[vectors]
engine = "tests.echo:EchoEngine"
task = "feature-extraction"
"""
PAGE = (Path(settings.BASE_DIR) / "docs" / "guide" / "openai.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(TABLE,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
((PAGE_S_MODEL, ENTRY),) = tomllib.loads(TABLE).items()
GENERATING = ["tiny", "held", "unserved", PAGE_S_MODEL]


COLOURS = ("red", "blue")
SCHEMA = {"type": "object", "properties": {"colour": {"enum": COLOURS}}, "required": ["colour"]}
TOOLS: Any = [
    {"type": "function", "function": {"name": "paint", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "rest"}},
]


class ClientTests(StackCase):
    """On one stack with a small model that generates. Keys are required."""

    key: str
    base: str

    @classmethod
    def setUpClass(cls) -> None:
        folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        tiny = str(tiny_models.build("text-generation", folder / "tiny"))
        ears = str(tiny_models.build("whisper-with-times", folder / "ears"))
        models = MODELS.format(folder=tiny, ears=ears, context=CONTEXT) + TABLE.replace(ENTRY["model"], tiny)
        cls.stack = cls.enterClassContext(Stack(models=models, replicas=1, environment={"API_KEY_REQUIRED": "1"}))
        cls.key = cls.stack.issue_key("client")
        cls.base = f"http://{HOST}:{cls.stack.port}"

    def assert_counted(self, answer: Any) -> None:
        """A chat of at most five tokens."""
        self.assertEqual(answer.usage.prompt_tokens, len(TEMPLATED))
        self.assertEqual(answer.usage.total_tokens, len(TEMPLATED) + answer.usage.completion_tokens)
        ended = answer.choices[0].finish_reason
        self.assertEqual(ended, "length" if answer.usage.completion_tokens == 5 else "stop")

    # OpenAI's, of Python

    def client(self, *, key: str = "", retries: int = 2, **options: Any) -> openai.OpenAI:
        return self.enterContext(
            openai.OpenAI(base_url=f"{self.base}/openai/v1", api_key=key or self.key, max_retries=retries, **options)
        )

    def chat(self, **fields: Any) -> ChatCompletion:
        fields = {"model": "tiny", "messages": HELLO, "max_tokens": 5, **fields}
        answer: ChatCompletion = self.client().chat.completions.create(**fields)
        return answer

    def test_a_chat(self) -> None:
        answer = self.chat(temperature=0)
        self.assert_counted(answer)
        self.assertEqual(answer.choices[0].message.role, "assistant")
        self.assertEqual(self.chat(temperature=0).choices[0].message.content, answer.choices[0].message.content)
        job = answer.id.removeprefix("chatcmpl-")
        shown = self.stack.get(f"/v1/jobs/{job}/output", headers={"Authorization": f"Bearer {self.key}"})
        self.assertEqual(shown.json[0]["generated_text"], answer.choices[0].message.content)

    def test_a_chat_as_it_is_generated(self) -> None:
        whole = self.chat(temperature=0, max_tokens=20)
        *chunks, last = self.client().chat.completions.create(
            model="tiny",
            messages=HELLO,
            temperature=0,
            max_tokens=20,
            stream=True,
            stream_options={"include_usage": True},
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        self.assertEqual((text, last.usage), (whole.choices[0].message.content, whole.usage))
        self.assertEqual(chunks[-1].choices[0].finish_reason, whole.choices[0].finish_reason)
        again = self.client().chat.completions.retrieve(last.id)
        self.assertEqual(again.choices[0].message.content, text)

    def test_a_text_as_it_is_generated(self) -> None:
        parameters: dict[str, Any] = {"model": "tiny", "prompt": "hello", "temperature": 0, "max_tokens": 20}
        whole = self.client().completions.create(**parameters)
        text = "".join(chunk.choices[0].text for chunk in self.client().completions.create(**parameters, stream=True))
        self.assertEqual(text, whole.choices[0].text)

    def test_a_stream_that_is_refused_is_an_error_of_the_client_s_own(self) -> None:
        with self.assertRaises(openai.BadRequestError) as bad:
            self.client().chat.completions.create(model="tiny", messages=HELLO, max_tokens=0, stream=True)
        self.assertEqual(bad.exception.param, "max_tokens")

    def test_a_text(self) -> None:
        answer = self.client().completions.create(model="tiny", prompt="hello", max_tokens=5, temperature=0)
        self.assertFalse(answer.choices[0].text.startswith("hello"))
        assert answer.usage
        self.assertEqual(answer.usage.prompt_tokens, len("hello"))

    def test_without_a_limit_the_model_s_own_holds(self) -> None:
        answer = self.client().chat.completions.create(model="tiny", messages=HELLO)
        assert answer.usage
        self.assertGreater(answer.usage.completion_tokens, 0)

    def test_an_answer_has_what_the_prompt_leaves_of_the_context(self) -> None:
        """User interfaces ask for 2,000 or 4,096 tokens, whatever the model."""
        question = "x" * (CONTEXT - len(TEMPLATED.replace("hello", "")) - 7)
        messages = [{"role": "user", "content": question}]
        for fields in ({"max_tokens": 4096}, {"max_tokens": None}, {"max_completion_tokens": 2000, "max_tokens": None}):
            with self.subTest(fields):
                answer = self.chat(messages=messages, temperature=0, **fields)
                assert answer.usage
                self.assertEqual(answer.usage.prompt_tokens, CONTEXT - 7)
                ended = answer.choices[0].finish_reason
                self.assertEqual(answer.usage.completion_tokens == 7, ended == "length")
        text = self.client().completions.create(model="tiny", prompt="x" * (CONTEXT - 2), temperature=0)
        assert text.usage
        self.assertLessEqual(text.usage.completion_tokens, 2)
        with self.assertRaises(openai.BadRequestError) as refused:
            self.client().completions.create(model="tiny", prompt="x" * CONTEXT)
        self.assertEqual(refused.exception.code, "context_length_exceeded")

    def test_a_last_message_of_the_assistant_is_answered_unless_it_is_to_be_gone_on_with(self) -> None:
        """The template of the small model puts nothing before an answer but a line break after what was said."""
        begun: list[ChatCompletionMessageParam] = [*HELLO, {"role": "assistant", "content": "I am"}]
        going_on = {"continue_final_message": True, "add_generation_prompt": False}
        for more, prompt in (({}, f"{TEMPLATED}assistant: I am\n"), (going_on, f"{TEMPLATED}assistant: I am")):
            with self.subTest(more):
                answer = self.chat(messages=begun, temperature=0, max_tokens=20, extra_body=more)
                *_, last = self.client().chat.completions.create(
                    model="tiny", messages=begun, temperature=0, max_tokens=20, stream=True, extra_body=more
                )
                text = self.client().completions.create(model="tiny", prompt=prompt, temperature=0, max_tokens=20)
                assert answer.usage
                self.assertEqual(answer.usage.prompt_tokens, len(prompt))
                self.assertEqual(answer.choices[0].message.content, text.choices[0].text)
                again = self.client().chat.completions.retrieve(last.id)
                self.assertEqual(again.choices[0].message.content, text.choices[0].text)

    def test_a_seed_draws_the_same_again(self) -> None:
        drawn = {self.chat(temperature=1.0, seed=seed, max_tokens=20).choices[0].message.content for seed in (1, 1, 2)}
        self.assertEqual(len(drawn), 2)

    def test_a_stop_string_ends_it(self) -> None:
        whole = self.chat(temperature=0, max_tokens=20).choices[0].message.content or ""
        stop = whole[2]
        answer = self.chat(temperature=0, max_tokens=20, stop=[stop])
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        self.assertLess(len(answer.choices[0].message.content or ""), len(whole))

    def test_an_answer_follows_the_schema_also_as_it_is_generated(self) -> None:
        schema = {"type": "array", "items": {"enum": [1, 22, 333]}, "minItems": 2, "maxItems": 2}
        requested: Any = {"type": "json_schema", "json_schema": {"name": "numbers", "schema": schema}}
        greedy: Any = {"model": "tiny", "messages": HELLO, "temperature": 0, "response_format": requested}
        whole = self.client().chat.completions.create(**greedy).choices[0]
        numbers = json.loads(whole.message.content)
        self.assertEqual((len(numbers), set(numbers) - {1, 22, 333}, whole.finish_reason), (2, set(), "stop"))
        stream = self.client().chat.completions.create(**greedy, stream=True)
        self.assertEqual("".join(chunk.choices[0].delta.content or "" for chunk in stream), whole.message.content)
        chosen = self.chat(extra_body={"structured_outputs": {"choice": ["yes", "no"]}})
        self.assertIn(chosen.choices[0].message.content, ("yes", "no"))

    def test_an_answer_that_is_cut_is_not_parsed(self) -> None:
        class Word(pydantic.BaseModel):
            word: str

        with self.assertRaises(openai.LengthFinishReasonError):
            self.client().chat.completions.parse(model="tiny", messages=HELLO, max_tokens=3, response_format=Word)

    def test_a_schema_that_cannot_be_compiled_is_refused_in_the_client_s_words(self) -> None:
        wrong: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "colour"}}}
        with self.assertRaises(openai.BadRequestError) as refused:
            self.chat(response_format=wrong)
        self.assertEqual(refused.exception.param, "response_format")
        words = "response_format: is refused by llguidance: Invalid type: colour."
        self.assertIn(words, refused.exception.message)
        with self.assertRaises(openai.APIError) as cut:
            list(
                self.client().chat.completions.create(model="tiny", messages=HELLO, response_format=wrong, stream=True)
            )
        self.assertEqual((cut.exception.message, cut.exception.param), (words, "response_format"))

    def test_a_tool_that_must_be_called_is_called_also_as_it_is_generated(self) -> None:
        """Whatever a model of random weights says."""
        named = {"type": "function", "function": {"name": "paint"}}
        for choice, names in (("required", {"paint", "rest"}), (named, {"paint"})):
            requested: Any = {"model": "tiny", "messages": HELLO, "tools": TOOLS, "tool_choice": choice, "seed": 3}
            whole = self.client().chat.completions.create(**requested).choices[0]
            [call] = whole.message.tool_calls
            self.assertIn(call.function.name, names)
            arguments = json.loads(call.function.arguments)
            self.assertIn(arguments, [{"colour": each} for each in COLOURS] if call.function.name == "paint" else [{}])
            self.assertEqual((whole.finish_reason, whole.message.content), ("tool_calls", None))
            with self.client().chat.completions.stream(**requested) as stream:
                [streamed] = stream.get_final_completion().choices
            found = [each.function for each in streamed.message.tool_calls or ()]
            self.assertEqual([each.name for each in found], [call.function.name])
            self.assertEqual([each.arguments for each in found], [call.function.arguments])
            self.assertEqual(streamed.finish_reason, "tool_calls")

    def test_beside_tools_an_answer_follows_its_schema_or_is_a_call(self) -> None:
        """Whatever a model of random weights says; a bias has it begin with one or the other."""
        brace, tag = (str(tiny_models.byte_tokenizer().encode(text)[0]) for text in "{<")
        form: Any = {
            "type": "json_schema",
            "json_schema": {"name": "sky", "schema": {**SCHEMA, "additionalProperties": False}},
        }
        for other, is_call in ((brace, True), (tag, False)):
            requested: Any = {"model": "tiny", "messages": HELLO, "tools": TOOLS, "response_format": form, "seed": 4}
            requested |= {"parallel_tool_calls": False, "logit_bias": {other: -100}}
            whole = self.client().chat.completions.create(**requested).choices[0]
            with self.client().chat.completions.stream(**requested) as stream:
                [streamed] = stream.get_final_completion().choices
            self.assertEqual(streamed.message.content or None, whole.message.content)
            if not is_call:
                self.assertIn(json.loads(whole.message.content or ""), [{"colour": each} for each in COLOURS])
                self.assertEqual(whole.finish_reason, "stop")
                continue
            self.assertEqual((whole.finish_reason, whole.message.content), ("tool_calls", None))
            for choice in (whole, streamed):
                [call] = choice.message.tool_calls or []
                self.assertIn(call.function.name, ("paint", "rest"))
                self.assertIsInstance(json.loads(call.function.arguments), dict)

    def test_the_result_of_a_call_is_answered(self) -> None:
        call: Any = {"id": "c1", "type": "function", "function": {"name": "paint", "arguments": '{"colour": "red"}'}}
        messages: list[ChatCompletionMessageParam] = [
            *HELLO,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "done"},
        ]
        answer = self.chat(messages=messages, tools=TOOLS)
        shown = "paint\nrest\nuser: hello\nassistant: paint \ntool: done\n"  # by the template, a token a byte
        self.assertEqual(answer.usage.prompt_tokens if answer.usage else None, len(shown))

    def test_tools_that_cannot_be_compiled_are_refused_in_the_client_s_words(self) -> None:
        schema = {"properties": {"a": {"type": "colour"}}}
        wrong: Any = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
        with self.assertRaises(openai.BadRequestError) as refused:
            self.chat(tools=wrong, tool_choice="required")
        self.assertEqual(refused.exception.param, "tools")

    def test_several_answers_to_a_chat(self) -> None:
        answer = self.chat(n=3, extra_body={"ignore_eos": True})
        self.assertEqual([choice.index for choice in answer.choices], [0, 1, 2])
        self.assertGreater(len({choice.message.content for choice in answer.choices}), 1)
        assert answer.usage
        self.assertEqual((answer.usage.prompt_tokens, answer.usage.completion_tokens), (len(TEMPLATED), 15))

    def test_log_probabilities(self) -> None:
        choice = self.chat(logprobs=True, top_logprobs=2, temperature=0).choices[0]
        assert choice.logprobs
        assert choice.logprobs.content
        self.assertEqual("".join(token.token for token in choice.logprobs.content), choice.message.content)
        for token in choice.logprobs.content:  # a greedy answer
            self.assertEqual((token.token, len(token.top_logprobs)), (token.top_logprobs[0].token, 2))
            self.assertAlmostEqual(token.logprob, token.top_logprobs[0].logprob)
        found = self.client().completions.create(model="tiny", prompt="hello", max_tokens=5, temperature=0, logprobs=1)
        scores = found.choices[0].logprobs
        assert scores
        assert scores.tokens
        self.assertEqual("".join(scores.tokens), found.choices[0].text)
        self.assertIsNone(self.chat().choices[0].logprobs)

    def test_log_probabilities_of_a_stream_are_those_of_the_answer_also_behind_any_chunk(self) -> None:
        options: Any = {"max_tokens": 20, "seed": 1, "extra_body": {"ignore_eos": True}}
        chunks: list[Any] = [*self.chat(logprobs=True, top_logprobs=2, stream=True, **options)]
        whole = self.client().chat.completions.retrieve(chunks[0].id).choices[0]
        assert whole.logprobs
        expected = [token.to_dict() for token in whole.logprobs.content or ()]
        self.assertEqual(len(expected), 20)
        for place, last in enumerate(chunks[:-1]):
            rest = self.client().get(
                f"/chat/completions/{last.id}",
                cast_to=ChatCompletionChunk,
                stream=True,
                stream_cls=openai.Stream[ChatCompletionChunk],
                options={"params": {"stream": "true"}, "headers": {"Last-Event-ID": last.event_id}},
            )
            found = [chunk.choices[0] for chunk in (*chunks[: place + 1], *rest)]
            scores = [token for choice in found if choice.logprobs for token in choice.logprobs.content or ()]
            self.assertEqual([token.to_dict() for token in scores], expected)
        requested: Any = {"model": "tiny", "messages": HELLO, "logprobs": True, "top_logprobs": 2, **options}
        with self.client().chat.completions.stream(**requested) as stream:
            stream.until_done()
            self.assertEqual(stream.current_completion_snapshot.choices[0].logprobs, whole.logprobs)

    def test_prompts_are_scored(self) -> None:
        """Harnesses rank choices so: by the tokens of several prompts, behind which at most one is generated."""
        prompts = ["hello there", "good morning", "hello"]
        options: Any = {"model": "tiny", "temperature": 0, "echo": True, "logprobs": 1, "seed": 1}
        for limit in (0, 1):
            answer = self.client().completions.create(prompt=prompts, max_tokens=limit, **options)
            for prompt, choice in zip(prompts, answer.choices, strict=True):
                scores = choice.logprobs
                assert scores
                assert scores.tokens
                assert scores.token_logprobs
                assert scores.top_logprobs
                self.assertTrue(choice.text.startswith(prompt))
                self.assertEqual(choice.finish_reason, "length")
                self.assertEqual("".join(scores.tokens[: len(prompt)]), prompt)
                self.assertEqual(scores.text_offset, list(range(len(prompt) + limit)))
                self.assertEqual((scores.token_logprobs[0], scores.top_logprobs[0]), (None, None))
                for logprob, best in zip(scores.token_logprobs[1:], scores.top_logprobs[1:], strict=True):
                    self.assertLessEqual(logprob, max(best.values()))
            assert answer.usage
            self.assertEqual(answer.usage.prompt_tokens, sum(map(len, prompts)))
            self.assertEqual(answer.usage.completion_tokens, limit * len(prompts))
        only = self.client().completions.create(model="tiny", prompt="hello", echo=True, max_tokens=0)
        self.assertEqual((only.choices[0].text, only.choices[0].logprobs), ("hello", None))

    def test_several_prompts(self) -> None:
        options: Any = {"model": "tiny", "temperature": 0, "max_tokens": 5}
        answer = self.client().completions.create(prompt=["hello", "good morning"], **options)
        alone = [self.client().completions.create(prompt=each, **options) for each in ("hello", "good morning")]
        self.assertEqual([each.text for each in answer.choices], [each.choices[0].text for each in alone])
        assert answer.usage
        self.assertEqual(answer.usage.total_tokens, sum(each.usage.total_tokens for each in alone if each.usage))
        with self.assertRaises(openai.BadRequestError) as refused:
            self.client().completions.create(prompt=["hello", ""], **options)
        self.assertEqual(refused.exception.param, "prompt[1]")
        self.assertIn("prompt[1]: The prompt is empty", refused.exception.message)

    def respond(self, **fields: Any) -> Any:
        requested: dict[str, Any] = {
            "model": "tiny",
            "input": "hello",
            "max_output_tokens": 20,
            "temperature": 0,
            **fields,
        }
        return self.client().responses.create(**requested)

    def test_a_response_is_the_answer_to_a_chat(self) -> None:
        response = self.respond(instructions="be kind")
        chat = self.chat(messages=[{"role": "system", "content": "be kind"}, *HELLO], max_tokens=20, temperature=0)
        self.assertEqual(response.output_text, chat.choices[0].message.content)
        self.assertEqual(response.usage.total_tokens, chat.usage.total_tokens if chat.usage else None)
        ended = {"length": "incomplete", "stop": "completed"}[chat.choices[0].finish_reason]
        self.assertEqual(response.status, ended)
        again = self.client().responses.retrieve(response.id)
        self.assertEqual((again.output, again.status), (response.output, ended))

    def test_a_response_repeats_what_its_request_had(self) -> None:
        tools = [{"type": "function", **tool["function"], "strict": True} for tool in TOOLS]
        named = {"type": "function", "name": "paint"}
        requested: dict[str, Any] = {
            "metadata": {"order": "4711"}, "user": "me", "instructions": "be kind", "tools": tools,
            "tool_choice": named,
        }  # fmt: skip
        first = self.respond(**requested)
        events = list(self.respond(**requested, stream=True))
        client = self.client().responses
        read = [*client.retrieve(first.id, stream=True)]
        for shown in (
            first, client.retrieve(first.id), *(each.response for each in (*events[:2], events[-1], read[0], read[-1])),
        ):  # fmt: skip
            self.assertEqual((shown.metadata, shown.user, shown.instructions), ({"order": "4711"}, "me", "be kind"))
            self.assertEqual((shown.tool_choice.name, shown.temperature, shown.service_tier), ("paint", 0, "default"))
        second = self.respond(previous_response_id=first.id, input="go on", max_output_tokens=5)
        self.assertEqual((second.metadata, second.previous_response_id), ({}, first.id))
        with self.assertRaises(openai.BadRequestError) as refused:
            self.respond(metadata={"order": "x" * 513})
        self.assertEqual(refused.exception.param, "metadata")

    def test_a_response_as_it_is_generated_is_read_on_from_any_event(self) -> None:
        whole = self.respond()
        events = list(self.respond(stream=True))
        kinds = [event.type for event in events]
        self.assertEqual(
            kinds[:4],
            [f"response.{kind}" for kind in ("created", "in_progress", "output_item.added", "content_part.added")],
        )
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        self.assertEqual(text, whole.output_text)
        last = events[-1].response
        self.assertEqual([item.content for item in last.output], [item.content for item in whole.output])
        numbers = [event.sequence_number for event in events]
        self.assertEqual(numbers, sorted(set(numbers)))
        for place in (0, 3, len(events) // 2, len(events) - 2):
            rest = list(
                self.client().responses.retrieve(last.id, stream=True, starting_after=events[place].sequence_number)
            )
            found = [*events[: place + 1], *rest]
            parts = [event.delta for event in found if event.type == "response.output_text.delta"]
            self.assertEqual("".join(parts), text)
            self.assertEqual(
                [event.type for event in rest if "delta" not in event.type],
                [kind for kind in kinds[place + 1 :] if "delta" not in kind],
            )

    def test_a_response_follows_another_one_with_the_result_of_a_call(self) -> None:
        tools = [{"type": "function", **tool["function"], "strict": True} for tool in TOOLS]
        named = {"type": "function", "name": "paint"}
        first = self.respond(tools=tools, tool_choice=named, max_output_tokens=80, instructions="be kind")
        [call] = first.output
        self.assertEqual((call.type, call.name), ("function_call", "paint"))
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
        second = self.respond(input=[result], previous_response_id=first.id, max_output_tokens=5)
        shown = "user: hello\nassistant: paint \ntool: done\n"
        self.assertEqual(second.usage.input_tokens, len(shown))
        with self.assertRaises(openai.BadRequestError) as unknown:
            self.respond(previous_response_id="resp_0")
        self.assertEqual(unknown.exception.param, "previous_response_id")

    def test_a_response_in_the_background_is_looked_at_and_cancelled(self) -> None:
        self.hold()
        response = self.respond(model="held", background=True)
        self.assertIn(response.status, ("queued", "in_progress"))
        cancelled = self.client().responses.cancel(response.id)
        self.assertEqual((cancelled.status, cancelled.id), ("cancelled", response.id))

    def test_a_response_and_a_chat_are_deleted(self) -> None:
        client = self.client()
        response = self.respond(input="hello", max_output_tokens=1)
        chat = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=1)
        client.responses.delete(response.id)
        deleted = client.chat.completions.delete(chat.id)
        self.assertEqual((deleted.id, deleted.object, deleted.deleted), (chat.id, "chat.completion.deleted", True))
        for retrieve in (
            functools.partial(client.responses.retrieve, response.id),
            functools.partial(client.chat.completions.retrieve, chat.id),
        ):
            with self.assertRaises(openai.NotFoundError):
                retrieve()

    def test_a_response_follows_a_schema(self) -> None:
        class Wall(pydantic.BaseModel):
            model_config = {"extra": "forbid"}
            is_red: bool

        response = self.client().responses.parse(model="tiny", input="hello", text_format=Wall)
        self.assertIsInstance(response.output_parsed, Wall)
        with self.assertRaises(openai.BadRequestError) as refused:
            self.respond(max_output_tokens=0)
        self.assertEqual(refused.exception.param, "max_output_tokens")

    def test_a_sound_is_written_down(self) -> None:
        sound = ("hello.wav", base64.b64decode(tiny_models.wav()))
        plain = self.client().audio.transcriptions.create(model="ears", file=sound)
        times = self.client().audio.transcriptions.create(model="ears", file=sound, response_format="verbose_json")
        bearer = {"Authorization": f"Bearer {self.key}"}
        native = self.stack.post("/v1/models/ears", {"inputs": tiny_models.wav()}, headers=bearer)
        self.assertEqual(plain.text, native.json["text"])
        self.assertEqual(times.text.strip(), "".join(each.text for each in times.segments or ()).strip())
        with self.assertRaises(openai.BadRequestError) as refused:
            self.client().audio.transcriptions.create(model="ears", file=sound, language="xx")
        self.assertEqual(refused.exception.param, "language")
        with self.assertRaises(openai.BadRequestError):
            self.client().audio.transcriptions.create(model="ears", file=("a.wav", b"no sound"))

    def test_several_at_once(self) -> None:
        async def complete_all() -> list[ChatCompletion]:
            async with openai.AsyncOpenAI(base_url=f"{self.base}/openai/v1", api_key=self.key) as client:
                calls = [
                    client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=5, temperature=temperature)
                    for temperature in (0, 0.5, 1)
                ]
                return await asyncio.gather(*calls)

        for answer in asyncio.run(complete_all()):
            self.assert_counted(answer)

    def test_models(self) -> None:
        self.assertEqual([model.id for model in self.client().models.list()], GENERATING)
        self.assertEqual(self.client().models.retrieve("tiny").id, "tiny")

    def test_errors_are_the_client_s_own(self) -> None:
        with self.assertRaises(openai.AuthenticationError):
            self.client(key="inf_wrong").models.list()
        with self.assertRaises(openai.NotFoundError) as unknown:
            self.chat(model="nope")
        self.assertEqual(unknown.exception.code, "model_not_found")
        with self.assertRaises(openai.BadRequestError) as bad:
            self.chat(max_tokens=0)
        self.assertEqual((bad.exception.param, bad.exception.type), ("max_tokens", "invalid_request_error"))
        self.assertIn("max_tokens: must be from 1", bad.exception.message)
        self.assertTrue(bad.exception.request_id)
        with self.assertRaises(openai.BadRequestError) as refused:
            self.chat(functions=[{"name": "f"}])
        self.assertEqual(refused.exception.param, "functions")
        with self.assertRaises(openai.InternalServerError) as nobody:
            self.client(retries=0).chat.completions.create(model="unserved", messages=HELLO)
        self.assertEqual(nobody.exception.code, "no_worker")

    def test_a_wait_that_is_over_runs_nothing_twice(self) -> None:
        before = self.stack.jobs.count()
        self.hold()
        with self.assertRaises(openai.InternalServerError) as over:
            self.client().chat.completions.create(model="held", messages=HELLO, extra_query={"timeout": "0.001"})
        self.assertEqual((over.exception.status_code, over.exception.code), (504, "not_finished"))
        self.assertEqual(self.stack.jobs.count(), before + 1)

    def test_with_a_key_of_its_own_it_is_waited_for_again(self) -> None:
        before = self.stack.jobs.count()
        answer = (
            self.client(default_query={"timeout": "0.3"})
            .with_options(max_retries=50)
            .chat.completions.create(
                model="tiny", messages=HELLO, max_tokens=5, extra_headers={"Idempotency-Key": "mine"}
            )
        )
        self.assert_counted(answer)
        self.assertEqual(self.stack.jobs.count(), before + 1)

    def test_the_examples_of_the_page_run(self) -> None:
        names: dict[str, Any] = {}
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            for code in EXAMPLES:
                named = code.replace("http://127.0.0.1:8000", self.base).replace("KEY", self.key)
                exec(compile(named, "page", "exec", dont_inherit=True), names)
        self.addCleanup(names["client"].close)
        jobs = self.stack.jobs.filter(model=PAGE_S_MODEL, status=Status.SUCCEEDED).order_by("pk")
        self.assertEqual(
            len(jobs), sum(len(re.findall(r"\.(?:create|parse|chat_completion)\(", code)) for code in EXAMPLES)
        )
        self.assertIn(jobs[0].output[0]["generated_text"], printed.getvalue())

    # Hugging Face's, of Python

    def test_a_text_with_details_as_it_is_generated(self) -> None:
        client: Any = InferenceClient(model=f"{self.base}/v1/models/tiny", token=self.key)
        parameters = {"max_new_tokens": 5, "do_sample": False, "details": True, "return_full_text": False}
        whole = client.text_generation("hello", **parameters)
        *parts, last = client.text_generation("hello", stream=True, **parameters)
        self.assertEqual("".join(part.token.text for part in (*parts, last)), whole.generated_text)
        self.assertEqual((last.generated_text, parts[0].generated_text), (whole.generated_text, None))
        details = (last.details.finish_reason, last.details.generated_tokens)
        self.assertEqual(details, (whole.details.finish_reason, whole.details.generated_tokens))
        tokens = [(token.id, token.logprob) for token in whole.details.tokens]
        self.assertEqual([(part.token.id, part.token.logprob) for part in (*parts, last)], tokens)

    def test_details_have_the_tokens_of_the_answer_and_of_the_prompt(self) -> None:
        client: Any = InferenceClient(model=f"{self.base}/v1/models/tiny", token=self.key)
        given = {"max_new_tokens": 5, "details": True, "return_full_text": False}
        found = client.text_generation("hello", do_sample=False, **given)
        self.assertEqual("".join(token.text for token in found.details.tokens), found.generated_text)
        self.assertEqual((found.details.prefill, found.details.seed, found.details.generated_tokens), ([], None, 5))
        more = {"decoder_input_details": True, "top_n_tokens": 2, "seed": 7}
        found = client.text_generation("hello", do_sample=True, **given, **more)
        self.assertEqual("".join(token.text for token in found.details.prefill), "hello")
        self.assertIsNone(found.details.prefill[0].logprob)
        self.assertLess(found.details.prefill[1].logprob, 0)
        self.assertEqual([len(each) for each in found.details.top_tokens], [2] * 5)
        self.assertEqual(found.details.seed, 7)

    def hugging_face(self, address: str, **fields: Any) -> Any:
        base_url = f"{self.base}{address}"
        client = self.enterContext(InferenceClient(base_url=base_url, api_key=self.key, timeout=PATIENCE_S))
        return client.chat_completion([{"role": "user", "content": "hello"}], max_tokens=5, temperature=0, **fields)

    def test_a_chat_of_hugging_face_at_the_model_s_address(self) -> None:
        self.assert_counted(self.hugging_face("/v1/models/tiny"))

    def test_a_text_and_a_chat_of_hugging_face_follow_a_grammar(self) -> None:
        client: Any = InferenceClient(model=f"{self.base}/v1/models/tiny", token=self.key)
        text = client.text_generation("hello", grammar={"type": "regex", "value": "[ab]{3}"}, return_full_text=False)
        self.assertRegex(text, "^[ab]{3}$")
        schema = {
            "type": "object",
            "properties": {"n": {"enum": [1]}},
            "required": ["n"],
            "additionalProperties": False,
        }
        requested = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        chat = client.chat_completion([{"role": "user", "content": "hello"}], temperature=0, response_format=requested)
        self.assertEqual(json.loads(chat.choices[0].message.content), {"n": 1})

    def test_a_chat_of_hugging_face_at_openai_s_address(self) -> None:
        for address in ("/openai/v1", "/openai/v1/chat/completions", "/openai/v1/"):
            with self.subTest(address):
                self.assert_counted(self.hugging_face(address, model="tiny"))

    def test_a_chat_of_hugging_face_as_it_is_generated(self) -> None:
        whole = self.hugging_face("/v1/models/tiny").choices[0].message.content
        for address in ("/v1/models/tiny", "/openai/v1"):
            with self.subTest(address):
                chunks = list(self.hugging_face(address, model="tiny", stream=True))
                self.assertEqual("".join(chunk.choices[0].delta.content or "" for chunk in chunks), whole)

    def test_errors_are_readable_in_hugging_face_s(self) -> None:
        for address in ("/v1/models/tiny", "/openai/v1"):
            with self.subTest(address), self.assertRaises(HfHubHTTPError) as failed:
                self.hugging_face(address, model="tiny", n=0)
            self.assertIn("n: must be a whole number", str(failed.exception))

    # Both, of JavaScript

    @classmethod
    @functools.cache
    def run_javascript(cls) -> dict[str, Any]:
        results: dict[str, Any] = javascript.run("chats.mjs", cls.base, cls.key)
        return results

    @javascript.needed
    def test_texts_objects_and_calls_of_the_ai_sdk(self) -> None:
        results = javascript.run("ai.mjs", self.base, self.key, "", "tiny")
        refused = results.pop("no model")
        self.assertEqual([name for name, result in results.items() if "answer" not in result], [], results)
        answers = {name: result["answer"] for name, result in results.items()}
        for name in ("object", "call"):
            self.assertIn(answers.pop(name)["colour"], ("red", "blue"))
        whole = self.chat(max_tokens=5, temperature=0)
        self.assertEqual({answer["text"] for answer in answers.values()}, {whole.choices[0].message.content})
        self.assertEqual({answer["usage"]["outputTokens"] for answer in answers.values()}, {5})
        self.assertEqual(refused["status"], 404)
        self.assertIn("There is no model 'nope'", refused["error"])

    @javascript.needed
    def test_chats_of_javascript(self) -> None:
        for name in ("openai", "hugging face", "hugging face at openai's address"):
            with self.subTest(name):
                answer = self.run_javascript()[name]["answer"]
                self.assertEqual(answer["usage"]["prompt_tokens"], len(TEMPLATED))
                self.assertIsInstance(answer["choices"][0]["message"]["content"], str)

    @javascript.needed
    def test_streams_of_javascript(self) -> None:
        whole = self.run_javascript()["openai"]["answer"]
        for name in ("openai, streamed", "hugging face, streamed"):
            with self.subTest(name):
                *chunks, last = self.run_javascript()[name]["answer"]
                text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
                self.assertEqual((text, last["usage"]), (whole["choices"][0]["message"]["content"], whole["usage"]))

    @javascript.needed
    def test_a_text_generation_of_hugging_face_s_of_javascript(self) -> None:
        whole = self.run_javascript()["hugging face, text"]["answer"]["generated_text"]
        *parts, last = self.run_javascript()["hugging face, text streamed"]["answer"]
        self.assertEqual("".join(part["token"]["text"] for part in (*parts, last)), whole)
        self.assertEqual({part["generated_text"] for part in parts}, {None})
        self.assertEqual(last["generated_text"], whole)
        self.assertEqual(last["details"]["generated_tokens"], 5)

    @javascript.needed
    def test_a_text_and_the_models_of_javascript(self) -> None:
        self.assertFalse(self.run_javascript()["text"]["answer"]["choices"][0]["text"].startswith("hello"))
        self.assertEqual(self.run_javascript()["models"]["answer"], GENERATING)

    @javascript.needed
    def test_errors_of_javascript(self) -> None:
        for name, status, param, words in (
            ("bad field", 400, "max_tokens", "max_tokens: must be from 1"),
            ("no model", 404, None, "There is no model 'nope'"),
            ("no key", 401, None, "This API key is not valid"),
        ):
            with self.subTest(name):
                result = self.run_javascript()[name]
                self.assertEqual((result["status"], result["param"]), (status, param))
                self.assertIn(words, result["error"])
                self.assertTrue(result["requestId"])
        for name in ("bad field of hugging face", "bad field of a stream of hugging face"):
            self.assertIn("n: must be a whole number", self.run_javascript()[name]["error"])
        self.assertIn(
            "max_tokens: must be", self.run_javascript()["bad field of a text stream of hugging face"]["error"]
        )
