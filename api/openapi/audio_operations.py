"""The operations at /v1/audio, which also exist below /openai."""

from __future__ import annotations

from drf_spectacular.types import OpenApiTypes

from api import codec
from api.openapi import openai_shapes as shapes
from api.openapi.operation_decorator import OPENAI, describe_operation
from api.openapi.operations import IDEMPOTENCY_KEY, make_wait_parameter, waiting
from api.requests import bodies

_WAIT = make_wait_parameter("timeout", bodies.MAX_WAIT_S, "the answer")

transcribe = describe_operation(
    "audio_transcribe",
    "Write down what is said in a sound",
    request={"multipart/form-data": shapes.TranscriptionBody},
    answers={(200, codec.CONTENT_TYPE): shapes.TranscriptionShown, (200, "text/plain"): str},
    parameters=[_WAIT, IDEMPOTENCY_KEY],
    form=OPENAI,
    also_at=["/openai/v1/audio/transcriptions"],
    **waiting,
)
speak = describe_operation(
    "audio_speak",
    "Speak a text; the answer is a WAV file",
    request=shapes.SpeechBody,
    # The generators of clients that are tested know bytes by the second of these types only.
    answers={(200, "audio/wav"): OpenApiTypes.BINARY, (200, "application/octet-stream"): OpenApiTypes.BINARY},
    parameters=[_WAIT, IDEMPOTENCY_KEY],
    form=OPENAI,
    also_at=["/openai/v1/audio/speech"],
    **waiting,
)
