"""Requests of OpenAI's clients to write down what is said in a sound, and to speak a text."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

from api.requests.dialects.base import (
    DialectRequest,
    find_model,
    read_non_null_fields,
    read_priority,
    refuse_unknown_fields,
)
from api.requests.file_form import FileForm
from inference.catalog import tasks
from inference.catalog.neutral_values import Neutral
from inference.catalog.tasks import AnswerShape
from inference.errors import make_field_error
from inference.submission.submissions import Submission

FORMATS = ("json", "text", "verbose_json", "srt", "vtt")  # of a transcription
WITH_TIMES = ("verbose_json", "srt", "vtt")
TIMES = "parameters.return_timestamps"
# Values that ask for nothing, by the fields of a form, which are texts.
FORM_NEUTRAL: Neutral = {
    "chunking_strategy": (), "include[]": (), "prompt": ("",), "stream": ("false",), "temperature": ("0", "0.0"),
    "timestamp_granularities[]": ("segment",),
}  # fmt: skip
SPEECH_NEUTRAL: Neutral = {"response_format": ("wav",), "speed": (1,), "stream_format": ("audio",)}
SPEECH_IGNORED = ("instructions", "voice")  # a model has a voice of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptionRequest(DialectRequest):
    response_format: str  # one of FORMATS


def read_transcription(form: FileForm) -> TranscriptionRequest:
    """Read a form with a sound. Raises `InvalidInput`, `UnknownModel`."""
    fields = {name: value for name, value in form.fields.items() if value}
    spec = find_model(fields)
    if not tasks.find_task(spec.task).transcribes:
        raise make_field_error("model", f"{spec.name!r} does not write down sounds.")
    wanted = fields.get("response_format", "json")
    if wanted not in FORMATS:
        raise make_field_error("response_format", f"must be one of {', '.join(FORMATS)}.")
    refuse_unknown_fields(fields, ("model", "language", "response_format"), FORM_NEUTRAL, ())
    parameters: dict[str, Any] = {"return_timestamps": True} if wanted in WITH_TIMES else {}
    if language := fields.get("language"):
        if "language" not in spec.parameters:
            raise make_field_error("language", f"is not served by {spec.name!r}; leave it out.")
        parameters["language"] = language
    if not (content := form.file.read()):
        raise make_field_error("file", "is empty; send the bytes of a sound.")
    inputs = base64.b64encode(content).decode()
    without_times = " or ".join(name for name in FORMATS if name not in WITH_TIMES)
    return TranscriptionRequest(
        submission=Submission(spec=spec, inputs=inputs, parameters=parameters),
        words={
            f"{TIMES}: leave it out": (
                f"response_format: {wanted} is not served by {spec.name!r}; send {without_times}"
            ),
            TIMES: "response_format",
            "parameters.": "",
            "inputs": "file",
        },
        response_format=wanted,
    )


def read_speech(document: object) -> DialectRequest:
    """Read a request to speak a text. Raises `InvalidInput`, `UnknownModel`."""
    fields = read_non_null_fields(document)
    spec = find_model(fields)
    if tasks.find_task(spec.task).shape is not AnswerShape.SOUND:
        raise make_field_error("model", f"{spec.name!r} does not speak.")
    if not isinstance(text := fields.get("input"), str) or not text:
        raise make_field_error("input", "must be a text.")
    refuse_unknown_fields(fields, ("model", "input", "service_tier"), SPEECH_NEUTRAL, SPEECH_IGNORED)
    submission = Submission(spec=spec, inputs=text, priority=read_priority(fields))
    return DialectRequest(submission=submission, words={"inputs": "input"})
