"""The log probabilities of a stream, which are those of the whole answer, wherever it is read on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

from django.test import SimpleTestCase, override_settings

from api.answers.completions import chunks, completion
from api.answers.completions.completion import CHAT, TEXT, CompletionKind
from inference.models import Job, Status
from inference.streams.chunks import Chunk
from inference.streams.cursor import StreamCursor
from inference.streams.events import Delta, End, Event
from inference.streams.output_texts import read_token_logprobs
from inference.streams.positions import BEGINNING, Position
from tests.api.test_completion_chunks import documents, text
from tests.api.test_completions import HELLO, MODELS_FILE
from tests.api.test_tool_calls import NAMES, PIECES

ATTEMPT = uuid4()


def make_tokens(chosen: random.Random, text: str) -> list[dict[str, Any]]:
    """Return tokens of a text: some have a part of a character, some no text, and some show in no text."""
    tokens, start = list[dict[str, Any]](), 0
    while start < len(text) or chosen.random() < 0.5:
        is_special = chosen.random() < 0.1
        size = 0 if is_special else chosen.randrange(4)
        shown = {"text": text[start : start + size] or "\ufffd", "logprob": -chosen.random(), "start": start}
        tokens.append({"id": len(tokens), "special": is_special, **shown})
        start += size
    return tokens


def make_job(chosen: random.Random, text: str, *, tools: bool) -> Job:
    tokens = make_tokens(chosen, text)
    likeliest = [[token, {**token, "text": "other"}] for token in tokens]
    details = {"finish_reason": "eos_token", "tokens": tokens, "top_tokens": likeliest}
    described = [{"type": "function", "function": {"name": name}} for name in NAMES]
    return Job(
        model="prompts",
        inputs=HELLO,
        parameters={"logprobs": 2, **({"tools": described} if tools else {})},
        status=Status.SUCCEEDED,
        output=[{"generated_text": text, "details": details}],
    )


def list_events(chosen: random.Random, job: Job, text: str, after: Position) -> Iterator[Event]:
    """Yield the events of a job whose text comes in pieces of random sizes, the last of them in its row."""
    scores = read_token_logprobs(job.output[0]["details"]) or []
    cursor, at, until = StreamCursor(job.id, after), 0, chosen.randrange(len(text) + 1)
    while at < until:
        piece = text[at : at + chosen.randrange(1, 9)]
        own = [each for each in scores if at <= each[0]["start"] < at + len(piece)]
        chunk = Chunk(job_id=job.id, attempt=ATTEMPT, at=at, text=piece, tokens=1, scores=own)
        if delta := cursor.take_new_text([(b"%d-0" % (at + 1), Chunk.from_bytes(job.id, chunk.to_bytes()))]):
            yield delta
        at += len(piece)
    if rest := cursor.take_rest_of_text(text, scores):
        yield rest
    yield End(job=job, text=text, id=cursor.last_event_id)


@override_settings(MODELS_FILE=MODELS_FILE)
class StreamedLogprobTests(SimpleTestCase):
    def write(self, chosen: random.Random, kind: CompletionKind, job: Job, after: Position = BEGINNING) -> list[Any]:
        begin = BEGINNING if completion.may_call_tools(kind, job) else after
        events = list_events(chosen, job, job.output[0]["generated_text"], begin)
        return documents(chunks.write_completion_chunks(job, events, kind=kind, after=after))

    def join(self, written: list[Any]) -> dict[str, list[Any]]:
        """Return the log probabilities of a stream as clients put them together."""
        found: dict[str, list[Any]] = {}
        for chunk in written:
            for name, part in (chunk["choices"][0]["logprobs"] or {}).items():
                if part:
                    found[name] = found.get(name, []) + part
        return found

    def test_they_are_those_of_the_whole_answer_also_behind_any_chunk(self) -> None:
        chosen = random.Random(9)
        for number in range(200):
            text = "".join(chosen.choice(PIECES) for _ in range(1 + chosen.randrange(8)))
            kind, tools = ((CHAT, True), (CHAT, False), (TEXT, False))[number % 3]
            job = make_job(chosen, text, tools=tools)
            [choice] = completion.make_completion(kind, job)["choices"]
            written = self.write(chosen, kind, job)
            with self.subTest(text, kind=kind.name, tools=tools):
                self.assertEqual(self.join(written), self.join([{"choices": [choice]}]))
                for place in range(len(written) - 1):  # behind the last one is nothing
                    after = Position.from_event_id(written[place]["event_id"], job.id)
                    rest = self.write(chosen, kind, job, after)[1:]
                    self.assertEqual(self.join([*written[: place + 1], *rest]), self.join(written))

    def test_those_of_a_worker_that_sends_none_come_with_the_end(self) -> None:
        chosen, text = random.Random(11), "hello, how are you?"
        for kind, tools in ((CHAT, True), (CHAT, False), (TEXT, False)):
            job = make_job(chosen, text, tools=tools)
            [choice] = completion.make_completion(kind, job)["choices"]
            made = list_events(chosen, job, text, BEGINNING)
            events = (replace(each, scores=()) if isinstance(each, Delta) else each for each in made)
            written = documents(chunks.write_completion_chunks(job, events, kind=kind))
            with self.subTest(kind=kind.name, tools=tools):
                self.assertEqual(self.join(written), self.join([{"choices": [choice]}]))

    def test_each_chunk_has_those_of_the_tokens_that_begin_in_its_text(self) -> None:
        chosen, at = random.Random(10), 0
        for chunk in self.write(chosen, TEXT, make_job(chosen, "hello, how are you?", tools=False))[:-1]:
            end = at + len(text([chunk]))
            for start in (chunk["choices"][0]["logprobs"] or {"text_offset": []})["text_offset"]:
                self.assertTrue(at <= start < end, chunk)
            at = end
