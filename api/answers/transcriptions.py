"""Transcriptions of sounds in the forms of OpenAI's interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from api import codec
from api.answers.completions.completion import NO_TEXT
from api.errors.problems import ApiError
from inference.models import Job
from inference.streams.output_texts import extract_single_answer

NO_TIMES = "The model's answer has no parts with their times."
LONGEST_S = 360_000  # of a sound: beyond it a time is none
TEXT = "text/plain; charset=utf-8"
CONTENT_TYPES = {"text": TEXT, "srt": TEXT, "vtt": "text/vtt; charset=utf-8"}  # by format; JSON for the others


def write_transcription(job: Job, form: str) -> bytes:
    """Write a transcription as `json`, `verbose_json`, `text`, `srt` or `vtt`.

    Raises `ApiError` if the output holds no text.
    """
    answer = extract_single_answer(job.output)
    if not isinstance(text := answer.get("text"), str):
        raise ApiError(NO_TEXT, "bad_output")
    match form:
        case "text":
            return f"{text}\n".encode()
        case "srt" | "vtt":
            return _write_subtitles(_list_segments(answer), form).encode()
        case "verbose_json":
            segments = _list_segments(answer)
            duration = segments[-1]["end"] if segments else 0.0
            language = job.parameters.get("language")
            fields = {"task": "transcribe", "language": language, "duration": duration, "text": text}
            return codec.write_json({**fields, "segments": segments})
    return codec.write_json({"text": text})


def _list_segments(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of a text, with their times in seconds. The last one may have no end, which is its beginning.

    Raises `ApiError` for chunks of another shape.
    """
    chunks = answer.get("chunks") or []
    if not isinstance(chunks, list):
        raise ApiError(NO_TIMES, "bad_output")
    return [_make_segment(number, chunk) for number, chunk in enumerate(chunks)]


def _make_segment(number: int, chunk: object) -> dict[str, Any]:
    match chunk:
        case {"text": str(text), "timestamp": [start, end]} if _is_time(start) and _is_time(end):
            start = start or 0.0
            return {"id": number, "start": start, "end": start if end is None else end, "text": text}
    raise ApiError(NO_TIMES, "bad_output")


def _is_time(value: object) -> bool:
    """Return True for a number of seconds of a sound, or None."""
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < LONGEST_S)


def _write_subtitles(segments: Sequence[dict[str, Any]], form: str) -> str:
    mark = "," if form == "srt" else "."
    blocks = ["WEBVTT\n"] if form == "vtt" else []
    for segment in segments:
        times = " --> ".join(_format_time(segment[name], mark) for name in ("start", "end"))
        number = f"{segment['id'] + 1}\n" if form == "srt" else ""
        text = " ".join(segment["text"].replace("-->", "->").split())  # a blank line or an arrow would begin a block
        blocks.append(f"{number}{times}\n{text}\n")
    return "\n".join(blocks)


def _format_time(seconds: float, mark: str) -> str:
    milliseconds = round(1000 * seconds)
    hours, rest = divmod(milliseconds, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    return f"{hours:02}:{minutes:02}:{rest // 1000:02}{mark}{rest % 1000:03}"
