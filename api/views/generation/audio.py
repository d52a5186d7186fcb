"""Views of sounds: what is said in one, and a text that is spoken."""

from __future__ import annotations

import io
from functools import partial

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from api.answers.transcriptions import CONTENT_TYPES, write_transcription
from api.answers.wav_files import CONTENT_TYPE, encode_wav
from api.errors.problems import ApiError
from api.openapi import audio_operations as operations
from api.requests.dialects import audio
from api.requests.file_form import read_file_form
from api.server.body_limits import find_body_limit
from api.views.base import read_body_bytes, read_json
from api.views.models import DialectView, run_in_dialect
from inference.models import Job

NO_SOUND = "The model's answer is no sound."


class TranscriptionView(DialectView):
    @operations.transcribe
    def post(self, request: HttpRequest) -> HttpResponseBase:
        meta = {**request.META, "wsgi.input": io.BytesIO(read_body_bytes(request))}
        form = read_file_form(meta, limit=find_body_limit(request.META), example="model=NAME")
        with form.file:
            dialect_request = audio.read_transcription(form)
        answer = run_in_dialect(
            self, request, dialect_request, partial(write_transcription, form=dialect_request.response_format)
        )
        return set_content_type(answer, CONTENT_TYPES.get(dialect_request.response_format))


class SpeechView(DialectView):
    @operations.speak
    def post(self, request: HttpRequest) -> HttpResponseBase:
        answer = run_in_dialect(self, request, audio.read_speech(read_json(request)), write_sound)
        return set_content_type(answer, CONTENT_TYPE)


def write_sound(job: Job) -> bytes:
    """Return the sound of a job as a WAV file. Raises `ApiError` if its output is none."""
    file = encode_wav(job.output)
    if file is None:
        raise ApiError(NO_SOUND, "bad_output")
    return file


def set_content_type(answer: HttpResponseBase, content_type: str | None) -> HttpResponseBase:
    """Set the type of an answer that is no error."""
    if content_type and answer.status_code == HttpResponse.status_code:
        answer.headers["Content-Type"] = content_type
    return answer
