"""A chat through the unmodified packages of OpenAI, whose web server is killed: another one tells the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import openai
from openai.types.chat import ChatCompletionChunk

from inference.launcher import programs
from tests import javascript, words
from tests.conditions import eventually
from tests.e2e.case import ShowingLog
from tests.ports import HOST, free_port
from tests.stack import Stack
from tests.streaming import is_open

MODELS = """
[words]
engine = "tests.words:WordsEngine"
task = "text-generation"
options = { step_ms = 60 }
"""
COUNT = 60  # words: some seconds
ANSWER = words.expected("hello", COUNT)[0]["generated_text"]


class WebServerGone(ShowingLog):
    def setUp(self) -> None:
        self.stack = self.enterContext(Stack(models=MODELS, replicas=1))
        port = free_port()
        self.stack.start(replace(programs.web(host=HOST, port=port), name="web2"))
        self.addresses = [f"http://{HOST}:{each}" for each in (self.stack.port, port)]
        eventually(lambda: is_open(port), "the other server listens")

    def kill(self) -> None:
        self.stack.children["web"].kill()

    def client(self, address: str) -> openai.OpenAI:
        return self.enterContext(openai.OpenAI(base_url=f"{address}/openai/v1", api_key="any"))

    def test_python(self) -> None:
        self.read(self.kill, openai.APIConnectionError)

    def test_python_with_a_server_that_is_stopped(self) -> None:
        self.read(self.stack.children["web"].terminate, openai.APIError)

    def read(self, end: Callable[[], Any], told: type[openai.APIError]) -> None:
        here, there = map(self.client, self.addresses)
        stream = here.chat.completions.create(
            model="words", messages=[{"role": "user", "content": "hello"}], max_tokens=COUNT, stream=True
        )
        chunks = [next(stream) for _ in range(4)]
        end()
        with self.assertRaises(told) as raised:
            chunks.extend(stream)
        self.assertIn(raised.exception.code, (None, "cut"))
        self.assertIsNone(chunks[-1].choices[0].finish_reason)
        place: Any = chunks[-1]
        rest = there.get(
            f"/chat/completions/{place.id}", cast_to=ChatCompletionChunk, stream=True,
            stream_cls=openai.Stream[ChatCompletionChunk],
            options={"params": {"stream": "true"}, "headers": {"Last-Event-ID": place.event_id}},
        )  # fmt: skip
        chunks.extend(rest)
        self.assertEqual("".join(chunk.choices[0].delta.content or "" for chunk in chunks), ANSWER)
        self.assertEqual(chunks[-1].choices[0].finish_reason, "stop")
        self.assertEqual(self.stack.jobs.count(), 1)

    @javascript.needed
    def test_javascript(self) -> None:
        script = javascript.start("streams.mjs", *self.addresses, "any")
        self.addCleanup(script.kill)
        assert script.stdout
        self.assertEqual(script.stdout.readline(), "it has begun\n")
        self.kill()
        told = javascript.ended(script)
        self.assertTrue(told["error"])
        self.assertEqual((told["text"], told["finish_reason"]), (ANSWER, "stop"))
        self.assertEqual(self.stack.jobs.count(), 1)
