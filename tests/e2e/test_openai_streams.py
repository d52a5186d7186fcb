"""A chat through the unmodified packages of OpenAI, whose web server is killed: another one tells the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import openai
from openai.types.chat import ChatCompletionChunk

from tests import javascript, words
from tests.conditions import eventually
from tests.e2e.case import StackCase
from tests.ports import HOST, free_port
from tests.streaming import is_open
from tools.launcher import programs

MODELS = """
[words]
engine = "tests.words:WordsEngine"
task = "text-generation"
time_limit_s = 180
options = { step_ms = 10 }
parameters = { logprobs = { type = "integer", min = 0, max = 20 } }
"""
COUNT = 60  # words
PROMPT = "held"  # after its first word
ANSWER = words.expected(PROMPT, COUNT)[0]["generated_text"]


class WebServerGone(StackCase):
    """Each test ends the first of two web servers in the middle of an answer."""

    options = {"models": MODELS, "replicas": 1}
    addresses: list[str]

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        port = free_port()
        cls.stack.start(replace(programs.make_web_server(host=HOST, port=port), name="web2"))
        cls.addresses = [f"http://{HOST}:{each}" for each in (cls.stack.port, port)]
        eventually(lambda: is_open(port), "the other server listens")

    def setUp(self) -> None:
        super().setUp()
        self.hold()
        self.before = self.stack.jobs.count()

    def tearDown(self) -> None:
        self.assertEqual(self.stack.jobs.count(), self.before + 1)
        self.stack.children["web"].kill()
        self.stack.start_web()
        self.stack.ready()

    def kill(self) -> None:
        self.stack.children["web"].kill()

    def client(self, address: str) -> openai.OpenAI:
        return self.enterContext(openai.OpenAI(base_url=f"{address}/openai/v1", api_key="any"))

    def test_python(self) -> None:
        self.read(self.kill, openai.APIConnectionError)

    def test_python_with_a_server_that_is_stopped(self) -> None:
        self.read(self.stack.children["web"].terminate, openai.APIError)

    def read(self, end: Callable[[], Any], expected_error: type[openai.APIError]) -> None:
        here, there = map(self.client, self.addresses)
        stream = here.chat.completions.create(
            model="words", messages=[{"role": "user", "content": PROMPT}], max_tokens=COUNT, logprobs=True, stream=True
        )
        chunks = [next(stream)]
        while not chunks[-1].choices[0].delta.content:
            chunks.append(next(stream))
        end()
        with self.assertRaises(expected_error) as raised:
            chunks.extend(stream)
        self.stack.release()
        self.assertIn(raised.exception.code, (None, "cut"))
        self.assertIsNone(chunks[-1].choices[0].finish_reason)
        place: Any = chunks[-1]
        rest = there.get(
            f"/chat/completions/{place.id}",
            cast_to=ChatCompletionChunk,
            stream=True,
            stream_cls=openai.Stream[ChatCompletionChunk],
            options={"params": {"stream": "true"}, "headers": {"Last-Event-ID": place.event_id}},
        )
        chunks.extend(rest)
        self.assertEqual("".join(chunk.choices[0].delta.content or "" for chunk in chunks), ANSWER)
        self.assertEqual(chunks[-1].choices[0].finish_reason, "stop")
        found = [chunk.choices[0].logprobs for chunk in chunks]
        tokens = [token for logprobs in found if logprobs for token in logprobs.content or ()]
        self.assertEqual("".join(token.token for token in tokens), ANSWER)
        self.assertEqual([token.logprob for token in tokens], [-1.0 / count for count in range(1, COUNT + 1)])

    @javascript.needed
    def test_javascript(self) -> None:
        script = javascript.start("streams.mjs", *self.addresses, "any", PROMPT)
        self.addCleanup(script.kill)
        assert script.stdout
        self.assertEqual(script.stdout.readline(), "it has begun\n")
        self.kill()
        self.stack.release()
        result = javascript.ended(script)
        self.assertTrue(result["error"])
        self.assertEqual((result["text"], result["finish_reason"]), (ANSWER, "stop"))
