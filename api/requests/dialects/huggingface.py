"""Requests in the forms that Hugging Face's clients send to a model, and those of Text Generation Inference."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from api import codec
from api.requests import bodies
from api.requests.dialects.base import DialectRequest, replace_beginning
from inference.catalog import tasks
from inference.catalog.parameters import is_of_type
from inference.catalog.sizes import lengths
from inference.catalog.specs import ModelSpec
from inference.errors import make_field_error
from inference.streams.events import End, Event
from inference.submission.submissions import Submission

RUN_BODY = bodies.RunBody()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest(DialectRequest):
    is_streamed: bool = False


def read_request(spec: ModelSpec, body: bytes, media_type: str) -> ModelRequest:
    """Read the job that a body asks for, which is JSON, or the bytes of an image or a sound.

    Raises `ApiError`, `InvalidInput`.
    """
    if tasks.find_task(spec.task).takes_files and body and not bodies.is_json(media_type):
        bodies.refuse_form(media_type)
        file = Submission(spec=spec, inputs=base64.b64encode(body).decode("ascii"), parameters={})
        return ModelRequest(submission=file, words={})
    bodies.require_json(media_type)
    document = codec.parse_json(body)
    if tasks.find_task(spec.task).parameters_at_root and isinstance(document, dict):
        document = _gather_parameters(document)
    fields = RUN_BODY.run_validation(document)
    parameters, words = fields.get("parameters") or {}, dict[str, str]()
    if fields.get("stream"):
        _refuse_what_is_not_streamed(spec, fields["inputs"])
    is_beam_search = parameters.get("num_beams") not in (None, 1)
    if spec.is_built_in and "logprobs" in spec.parameters and parameters.get("details") is True and not is_beam_search:
        parameters, words = _ask_for_tokens(parameters)
    submission = Submission(spec=spec, inputs=fields["inputs"], parameters=parameters)
    return ModelRequest(submission=submission, words=words, is_streamed=fields.get("stream", False))


def translate_stream_errors(events: Iterator[Event], words: Mapping[str, str]) -> Iterator[Event]:
    """Yield the events of a stream, with the words of its request in the error of a job that has failed."""
    for event in events:
        if isinstance(event, End):
            event.job.error_detail = replace_beginning(event.job.error_detail, words)
        yield event


def _refuse_what_is_not_streamed(spec: ModelSpec, inputs: object) -> None:
    why = f"{spec.name!r} does not generate text" if not tasks.find_task(spec.task).generates else ""
    if lengths.is_input_list(spec, inputs):
        why = "the answer to one input is, and these are several"
    if why:
        raise make_field_error("stream", f"this is not streamed, {why}: leave stream out, or send false.")


def _ask_for_tokens(parameters: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the parameters for details that have all tokens, as those of Text Generation Inference do.

    With them are the client's names of those that have two.
    """
    translated, names = {**parameters, "logprobs": parameters.get("logprobs") or 0}, dict[str, str]()
    if translated.get("decoder_input_details") is True:
        translated |= {"decoder_input_details": None, "prompt_logprobs": 0}
        names["prompt_logprobs"] = "decoder_input_details"
    if is_of_type(top := translated.get("top_n_tokens"), "integer"):
        translated |= {"top_n_tokens": None, "logprobs": top}
        names["logprobs"] = "top_n_tokens"
    elif not parameters.get("logprobs"):
        names["logprobs"] = "details"
    return translated, {f"parameters.{ours}": f"parameters.{theirs}" for ours, theirs in names.items()}


def _gather_parameters(document: dict[str, Any]) -> dict[str, Any]:
    """Return the body with the parameters at its root moved into `parameters`."""
    own = {*RUN_BODY.accepted_names, *RUN_BODY.elsewhere}
    at_root = {name: value for name, value in document.items() if name not in own}
    given = {} if document.get("parameters") is None else document["parameters"]
    if not at_root or "inputs" not in document or not isinstance(given, dict):
        return document
    rest = {name: value for name, value in document.items() if name in own}
    return {**rest, "parameters": {**at_root, **given}}
