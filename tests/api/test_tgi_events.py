"""The streams of Text Generation Inference's clients: an event for each token, the last with the end."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
from django.test import SimpleTestCase, override_settings

from api.answers.completions.tgi_events import write_token_events
from api.requests.dialects import huggingface
from inference.errors import make_field_error
from inference.models import Job, Status
from inference.streams.chunks import Chunk
from inference.streams.events import Delta, End, Event, Restart
from inference.streams.positions import BEGINNING, Position
from tests.api.base import ApiTestCase
from tests.api.test_completions import MODELS_FILE, PIPELINE
from tests.api.test_streamed_logprobs import list_events, make_job
from tests.api.test_tool_calls import PIECES


@override_settings(MODELS_FILE=MODELS_FILE)
class TokenEventTests(SimpleTestCase):
    def write(self, job: Job, events: Iterable[Event]) -> list[tuple[str, str, Any]]:
        """Return the name, the id and the data of each event."""
        blocks = b"".join(write_token_events(job, iter(events), plain=False)).decode().split("\n\n")[1:-1]
        lines = [dict(line.split(": ", 1) for line in block.split("\n")) for block in blocks]
        return [(fields["event"], fields["id"], orjson.loads(fields["data"])) for fields in lines]

    def test_each_token_has_its_part_of_the_text_and_the_last_the_end(self) -> None:
        chosen = random.Random(11)
        for _ in range(200):
            text = "".join(chosen.choice(PIECES) for _ in range(1 + chosen.randrange(8)))
            job = make_job(chosen, text, tools=False)
            with self.subTest(text):
                self.assert_streamed(job, text, self.write(job, list_events(chosen, job, text, BEGINNING)))

    def assert_streamed(self, job: Job, text: str, written: list[tuple[str, str, Any]]) -> None:
        details, so_far, shown = job.output[0]["details"], "", list[int]()
        self.assertEqual([name for name, _, _ in written], ["delta"] * (len(written) - 1) + ["end"])
        for name, event_id, data in written:
            token = data["token"]
            if not token.get("special", True):
                so_far += token["text"]
                shown.append(token["id"])
                self.assertEqual([each["text"] for each in data["top_tokens"]][1:], ["other"])
            self.assertEqual("generated_text" in data, name == "end")
            if name == "delta" and not token["special"]:
                self.assertEqual(Position.from_event_id(event_id, job.id).at, len(so_far))
        self.assertEqual(so_far, text)
        self.assertEqual(shown, [token["id"] for token in details["tokens"] if not token["special"]])
        _, _, last = written[-1]
        self.assertEqual((last["generated_text"], last["details"]), (text, details))

    def test_details_ask_for_tokens_where_they_can_be_had(self) -> None:
        for parameters, logprobs in (
            ({"details": True}, 0),
            ({"details": True, "logprobs": None}, 0),
            ({"details": True, "logprobs": False}, 0),
            ({"details": True, "top_n_tokens": 2}, 2),
            ({"details": True, "num_beams": 2}, None),
            ({"details": False}, None),
        ):
            with self.subTest(parameters):
                body = orjson.dumps({"inputs": "a", "parameters": parameters})
                requested = huggingface.read_request(PIPELINE, body, "application/json")
                self.assertEqual(requested.submission.parameters.get("logprobs"), logprobs)

    def test_scores_that_are_no_json_are_left_out_of_a_stream(self) -> None:
        scores: list[Any] = [({"start": 0, "logprob": object()}, [])]
        chunk = Chunk(job_id=uuid4(), attempt=uuid4(), at=0, text="a", tokens=1, scores=scores)
        self.assertEqual(Chunk.from_bytes(chunk.job_id, chunk.to_bytes()), replace(chunk, scores=()))

    def test_a_worker_that_sends_no_tokens_has_its_text_streamed(self) -> None:
        chosen, text = random.Random(13), "hello, how are you?"
        job = make_job(chosen, text, tools=False)
        made = list_events(chosen, job, text, BEGINNING)
        written = self.write(job, (replace(each, scores=()) if isinstance(each, Delta) else each for each in made))
        self.assertEqual([name for name, _, _ in written], ["delta"] * (len(written) - 1) + ["end"])
        self.assertEqual("".join(data["token"]["text"] for _, _, data in written), text)
        self.assertEqual(written[-1][2]["details"], job.output[0]["details"])

    def test_a_text_that_begins_again_has_all_its_tokens(self) -> None:
        chosen, text = random.Random(12), "hello, how are you?"
        job = make_job(chosen, text, tools=False)
        before = list(list_events(chosen, job, text, BEGINNING))[:-1]
        again = [Restart(id=BEGINNING.make_event_id(job.id)), *list_events(chosen, job, text, BEGINNING)]
        written = self.write(job, [*before, *again])
        (restart,) = (place for place, (name, _, _) in enumerate(written) if name == "restart")
        self.assertEqual(written[restart][2]["error_type"], "restart")
        self.assert_streamed(job, text, written[restart + 1 :])

    def test_an_error_is_told_as_in_any_stream(self) -> None:
        job = Job(model="prompts", status=Status.FAILED, error_code="timed_out", error_detail="It failed.")
        ((name, _, data),) = self.write(job, [End(job=job, text=None, id="1")])
        self.assertEqual((name, data["error"], data["error_type"]), ("end", "It failed.", "timed_out"))


class FieldTests(ApiTestCase):
    def setUp(self) -> None:
        super().setUp()
        file = self.enterContext(tempfile.NamedTemporaryFile("w", suffix=".toml"))
        file.write('[m]\ntask = "text-generation"\nmodel = "a/b"\n')
        file.flush()
        self.enterContext(override_settings(MODELS_FILE=Path(file.name)))

    def ask(self, is_streamed: bool, **parameters: Any) -> Any:
        body = {"inputs": "a", "stream": is_streamed, "parameters": {"details": True, **parameters}}
        return self.post("/v1/models/m", body)

    def test_errors_name_the_fields_that_were_sent(self) -> None:
        failing: list[tuple[dict[str, Any], str, str]] = [
            ({"decoder_input_details": True}, "prompt_logprobs", "decoder_input_details"),
            ({"top_n_tokens": 2}, "logprobs", "top_n_tokens"),
            ({"logprobs": 2}, "logprobs", "logprobs"),
            ({}, "logprobs", "details"),
        ]
        for is_streamed in (False, True):
            for parameters, field in (
                ({"top_n_tokens": 21}, "top_n_tokens"),
                ({"logprobs": 21}, "logprobs"),
                ({"logprobs": 2, "top_n_tokens": -1}, "top_n_tokens"),
            ):
                with self.subTest(parameters, is_streamed=is_streamed):
                    problem = self.assert_problem(self.ask(is_streamed, **parameters), 422, "invalid_input")
                    self.assertTrue(problem["detail"].startswith(f"parameters.{field}: must be from 0 to 20"), problem)
            for parameters, ours, theirs in failing:
                failed = make_field_error(f"parameters.{ours}", "is not served.")
                with self.subTest(parameters, is_streamed=is_streamed), self.worker(lambda *_, found=failed: found):
                    answer = self.ask(is_streamed, **parameters)
                    content = b"".join(answer) if is_streamed else answer.content
                    self.assertIn(f'"parameters.{theirs}: is not served."'.encode(), content)
