"""/v1/audio: what is said in a sound, in each form, and a text that is spoken."""

from __future__ import annotations

import base64
import functools
from pathlib import Path
from typing import Any

from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import SimpleTestCase, override_settings

from api.answers.transcriptions import write_transcription
from api.errors.problems import ApiError
from api.requests.dialects import audio
from api.requests.file_form import FileForm
from inference.errors import InvalidInput, UnknownModel
from inference.models import Job
from tests import tiny_models
from tests.api.base import ApiTestCase, Response
from tests.api.test_completions import answering

MODELS_FILE = Path(__file__).with_name("audio.toml")
WAV = base64.b64decode(tiny_models.wav())
ANSWER = {
    "text": "Hello there.",
    "chunks": [
        {"timestamp": (0.0, 1.5), "text": " Hello"},
        {"timestamp": (3661.25, None), "text": " there."},
    ],
}


@override_settings(MODELS_FILE=MODELS_FILE)
class ReadTests(SimpleTestCase):
    def read(self, **fields: str) -> audio.TranscriptionRequest:
        file = SimpleUploadedFile("a.wav", WAV)
        return audio.read_transcription(FileForm(fields={"model": "ears", **fields}, file=file))

    def test_a_form_is_a_job_with_the_sound(self) -> None:
        for fields, parameters in (
            ({}, {}),
            ({"response_format": "text", "temperature": "0", "prompt": "", "stream": "false"}, {}),
            ({"response_format": "srt", "timestamp_granularities[]": "segment"}, {"return_timestamps": True}),
            ({"language": "en"}, {"language": "en"}),
        ):
            with self.subTest(fields):
                submission = self.read(**fields).submission
                self.assertEqual((submission.inputs, submission.parameters), (tiny_models.wav(), parameters))

    def test_what_is_not_served_is_refused_by_name(self) -> None:
        for fields, field in (
            ({"model": "voice"}, "model"),
            ({"response_format": "diarized_json"}, "response_format"),
            ({"temperature": "0.7"}, "temperature"),
            ({"prompt": "names"}, "prompt"),
            ({"stream": "true"}, "stream"),
            ({"timestamp_granularities[]": "word"}, "timestamp_granularities[]"),
            ({"nonsense": "x"}, "nonsense"),
        ):
            with self.subTest(fields), self.assertRaises(InvalidInput) as caught:
                self.read(**fields)
            self.assertEqual(caught.exception.field, field)
        with self.assertRaises(InvalidInput) as empty:
            audio.read_transcription(FileForm(fields={"model": "ears"}, file=SimpleUploadedFile("a.wav", b"")))
        self.assertEqual(empty.exception.message, "file: is empty; send the bytes of a sound.")
        with self.assertRaises(UnknownModel):
            self.read(model="nope")

    def test_a_speech_is_a_job_with_the_text(self) -> None:
        requested: dict[str, Any] = {"model": "voice", "input": "hello", "voice": "alloy", "speed": 1.0}
        self.assertEqual(audio.read_speech(requested).submission.inputs, "hello")
        for fields, field in (
            ({"model": "ears"}, "model"),
            ({"input": ""}, "input"),
            ({"response_format": "mp3"}, "response_format"),
            ({"speed": 2}, "speed"),
        ):
            with self.subTest(fields), self.assertRaises(InvalidInput) as caught:
                audio.read_speech({**requested, **fields})
            self.assertEqual(caught.exception.field, field)


@override_settings(MODELS_FILE=MODELS_FILE)
class AnswerTests(ApiTestCase):
    def transcribe(self, answer: Any = ANSWER, **fields: Any) -> Response:
        form = {"model": "ears", **fields, "file": SimpleUploadedFile("a.wav", WAV)}
        with self.worker(functools.partial(answering, answer)):
            return self.client.post("/v1/audio/transcriptions", form)

    def test_a_transcription_has_the_form_that_was_asked_for(self) -> None:
        srt = "1\n00:00:00,000 --> 00:00:01,500\nHello\n\n2\n01:01:01,250 --> 01:01:01,250\nthere.\n"
        vtt = "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHello\n\n01:01:01.250 --> 01:01:01.250\nthere.\n"
        for form, kind, text in (
            ("json", "application/json", '{"text":"Hello there."}'),
            ("text", "text/plain; charset=utf-8", "Hello there.\n"),
            ("srt", "text/plain; charset=utf-8", srt),
            ("vtt", "text/vtt; charset=utf-8", vtt),
        ):
            with self.subTest(form):
                answer = self.transcribe(response_format=form)
                self.assertEqual((answer.status_code, answer["Content-Type"]), (200, kind))
                self.assertEqual(answer.content.decode(), text)
        found = self.transcribe(response_format="verbose_json").json()
        self.assertEqual((found["text"], found["duration"]), ("Hello there.", 3661.25))
        self.assertEqual([segment["text"] for segment in found["segments"]], [" Hello", " there."])

    def test_parts_of_an_odd_shape_are_the_model_s_fault(self) -> None:
        wrong: list[Any] = [
            "abc", {"a": 1}, [None], ["a"], [{"text": "a"}], [{"timestamp": [0, 1]}],
            [{"text": "a", "timestamp": None}], [{"text": "a", "timestamp": [0]}],
            [{"text": None, "timestamp": [0, 1]}], [{"text": "a", "timestamp": ["0", 1]}],
            [{"text": "a", "timestamp": [-1, 1]}], [{"text": "a", "timestamp": [0, 1e300]}],
        ]  # fmt: skip
        for chunks in wrong:
            job = Job(model="ears", output={"text": "a", "chunks": chunks})
            for form in ("srt", "vtt", "verbose_json"):
                with self.subTest(chunks, form=form), self.assertRaises(ApiError) as caught:
                    write_transcription(job, form)
                self.assertEqual(caught.exception.code, "bad_output")
        odd = {"text": "a", "chunks": [{"text": " a\n\nb --> c", "timestamp": [0, 1]}]}
        vtt = write_transcription(Job(model="ears", output=odd), "vtt").decode()
        self.assertTrue(vtt.endswith("\na b -> c\n"), vtt)

    def test_errors_are_openai_s(self) -> None:
        for answer, status in (
            (self.transcribe("no text"), 502),
            (self.transcribe(response_format="mp3"), 400),
            (self.post("/v1/audio/transcriptions", {"model": "ears"}), 415),
            (self.client.post("/v1/audio/transcriptions", {"model": "ears"}), 400),
        ):
            with self.subTest(status):
                self.assertEqual(answer.status_code, status, answer.content)
                self.assertTrue(answer.json()["error"]["message"])
        nothing = self.client.post("/v1/audio/transcriptions", {"model": "ears"})
        self.assertEqual(nothing.json()["error"]["param"], "file")
        refusal = InvalidInput("parameters.return_timestamps: leave it out, as this model tells no times.")
        with self.worker(functools.partial(answering, refusal)):
            form = {"model": "ears", "response_format": "srt", "file": SimpleUploadedFile("a.wav", WAV)}
            without_times = self.client.post("/v1/audio/transcriptions", form)
        said = "response_format: srt is not served by 'ears'; send json or text, as this model tells no times."
        error = without_times.json()["error"]
        self.assertEqual((without_times.status_code, error["param"], error["message"]), (400, "response_format", said))
        twice = self.transcribe(language=["en", "de"])
        self.assertEqual((twice.status_code, twice.json()["error"]["param"]), (400, "language"))

    def test_a_text_is_spoken_as_a_file(self) -> None:
        sound = {"audio": [0.0, 0.5], "sampling_rate": 16_000}
        requested = {"model": "voice", "input": "hello", "voice": "alloy"}
        with self.worker(functools.partial(answering, sound)):
            answer = self.post("/v1/audio/speech", requested)
        self.assertEqual(answer["Content-Type"], "audio/wav")
        self.assertEqual(answer.content[:4], b"RIFF")
        with self.worker(functools.partial(answering, "no sound")):
            self.assertEqual(self.post("/v1/audio/speech", requested).status_code, 502)
