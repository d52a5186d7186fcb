"""Completions, and lists of models, in the form that the clients of OpenAI and of Hugging Face read."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from api.answers.completions import tool_calls
from api.answers.completions.logprobs import (
    list_scores_with_prompt,
    make_chat_logprobs,
    make_text_logprobs,
    measure_prompt,
)
from api.errors.problems import ApiError
from api.requests.dialects.base import TIERS
from inference.catalog import tasks
from inference.catalog.lookup import get_catalog, get_last_spec, get_spec
from inference.catalog.sizes import lengths
from inference.catalog.specs import ModelSpec
from inference.errors import UnknownModel
from inference.models import Job
from inference.streams.output_texts import (
    extract_generated_text,
    extract_single_answer,
    extract_text,
    read_token_logprobs,
)
from inference.submission import jobs

NO_TEXT = 'The model\'s answer is not [{"generated_text": "…"}].'
FINISH_REASONS = {"length": "length", "eos_token": "stop", "stop_sequence": "stop"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionKind:
    """A kind of completions, with the names and fields in which its answers differ from those of the others."""

    prefix: str  # of a completion's id, before the job's id
    inputs: str  # the field of a request that holds its inputs
    name: str
    chunk: str  # the name of a chunk of a stream
    whole: Callable[[str], dict[str, Any]]  # the fields of a choice with this text
    part: Callable[[str], dict[str, Any]]
    first: dict[str, Any]
    last: dict[str, Any]
    has_tokens: bool = False  # each chunk is also an event of Hugging Face's text generation
    has_calls: bool = False  # an answer may have calls of tools
    make_logprobs: Callable[[Sequence[Any]], dict[str, Any]]  # of scores, as streams have them


CHAT = CompletionKind(
    prefix="chatcmpl-",
    inputs="messages",
    name="chat.completion",
    chunk="chat.completion.chunk",
    whole=lambda text: {"message": {"role": "assistant", "content": text, "refusal": None}},
    part=lambda text: {"delta": {"content": text}},
    first={"delta": {"role": "assistant", "content": ""}},
    last={"delta": {}},
    has_calls=True,
    make_logprobs=make_chat_logprobs,
)
TEXT = CompletionKind(
    prefix="cmpl-",
    inputs="prompt",
    name="text_completion",
    chunk="text_completion",
    whole=lambda text: {"text": text},
    part=lambda text: {"text": text},
    first={"text": ""},
    last={"text": ""},
    make_logprobs=make_text_logprobs,
)
MODEL_TEXT = replace(TEXT, has_tokens=True)


def make_completion(kind: CompletionKind, job: Job, answers: int = 1) -> dict[str, Any]:
    """Return the completion of a job that has succeeded, with so many answers to each prompt.

    Raises `ApiError` if the output holds no text.
    """
    found = read_generated_texts(job)
    prompts = jobs.read_inputs(job) if job.parameters.get("return_full_text") else []
    choices = [_make_choice(kind, job, prompts, index, text, details) for index, (text, details) in enumerate(found)]
    usage = _make_usage([details for _, details in found], answers)
    return {**make_completion_head(kind, job), "object": kind.name, "choices": choices, "usage": usage}


def _make_choice(
    kind: CompletionKind, job: Job, prompts: Sequence[Any], index: int, text: str, details: Mapping[str, Any]
) -> dict[str, Any]:
    words, calls = (
        tool_calls.separate_text_and_calls(job, text, choice=index) if may_call_tools(kind, job) else (text, [])
    )
    fields = kind.whole(words)
    if calls:
        fields["message"] |= {"content": words or None, "tool_calls": calls}
    reason = read_finish_reason(details, calls_tools=bool(calls))
    scores = read_token_logprobs(details)
    if job.parameters.get("return_full_text") and details.get("prefill"):
        prompt = job.prompt_length
        if prompt is None:  # of several
            prompt = measure_prompt(prompts[index], details["prefill"])
        scores = list_scores_with_prompt(details, prompt=prompt)
    logprobs = None if scores is None else kind.make_logprobs(scores)
    return {"index": index, **fields, "finish_reason": reason, "logprobs": logprobs}


def may_call_tools(kind: CompletionKind, job: Job) -> bool:
    """Return True if the job's answer in this form may have calls of tools."""
    return kind.has_calls and "tools" in job.parameters


def generates_texts(job: Job) -> bool:
    """Return True if the job generates a text, or several."""
    spec = get_last_spec(job.model)
    return spec is not None and tasks.find_task(spec.task).generates


def generates_single_text(job: Job) -> bool:
    """Return True if the job generates one text."""
    spec = get_last_spec(job.model)
    if spec is None or job.parts or not tasks.find_task(spec.task).generates:
        return False
    return not lengths.is_input_list(spec, job.inputs)


def count_answers(job: Job) -> int:
    """Return how many answers a job gives to each prompt. Equal prompts side by side are taken for one prompt."""
    if generates_single_text(job):
        return 1
    return math.gcd(*(len(list(equal)) for _, equal in itertools.groupby(jobs.read_inputs(job))))


def make_completion_head(kind: CompletionKind, job: Job) -> dict[str, Any]:
    spec = get_last_spec(job.model)
    return {
        "id": f"{kind.prefix}{job.id}",
        "created": int(job.created_at.timestamp()),
        "model": job.model,
        "system_fingerprint": f"fp_{spec.load_digest}" if spec else None,
        "service_tier": TIERS.get(job.priority),
    }


def read_generated_texts(job: Job) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the text of each answer, as a stream sends it, and its details.

    The text begins with its prompt where the job asks for that. Raises `ApiError` if the output holds no text.
    """
    if generates_single_text(job):
        text = extract_text(job.output) if job.parameters.get("return_full_text") else extract_generated_text(job)
        found = [(text, read_details(job.output))]
    else:
        outputs = job.output if isinstance(job.output, list) else []
        found = [(extract_text(output), read_details(output)) for output in outputs]
    texts = [(text, details) for text, details in found if text is not None]
    if not texts or len(texts) < len(found):
        raise ApiError(NO_TEXT, "bad_output")
    return texts


def read_details(output: object) -> Mapping[str, Any]:
    """Return how the generation ended, and how many tokens it took.

    The result is empty if a custom engine gives no details. It may also give other ones.
    """
    details = extract_single_answer(output).get("details")
    return details if isinstance(details, dict) else {}


def read_finish_reason(details: Mapping[str, Any], *, calls_tools: bool = False) -> str:
    reason = FINISH_REASONS.get(str(details.get("finish_reason")), "stop")
    return "tool_calls" if calls_tools and reason == "stop" else reason


def make_usage(details: Mapping[str, Any]) -> dict[str, int] | None:
    match details:
        case {"prompt_tokens": int(prompt), "generated_tokens": int(generated)}:
            return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}
    return None


def count_tokens(job: Job, answers: int) -> tuple[int, int]:
    """Return how many tokens a job with so many answers to each prompt has read, and how many it has made."""
    outputs = job.output if isinstance(job.output, list) and not generates_single_text(job) else [job.output]
    usage = _make_usage([read_details(output) for output in outputs], answers) or {}
    return usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)


def _make_usage(details: Sequence[Mapping[str, Any]], answers: int) -> dict[str, int] | None:
    """Return the tokens of all answers. Those of a prompt count once, however many answers it has."""
    found = [usage for each in details if (usage := make_usage(each))]
    if len(found) < len(details):
        return None
    prompts = sum(usage["prompt_tokens"] for usage in found[::answers])
    made = sum(usage["completion_tokens"] for usage in found)
    return {"prompt_tokens": prompts, "completion_tokens": made, "total_tokens": prompts + made}


def list_models() -> dict[str, Any]:
    """Return the list of the models that generate text, give vectors or tell harmful texts."""
    return {
        "object": "list",
        "data": [make_openai_model(spec) for spec in get_catalog().values() if _is_openai_model(spec)],
    }


def _is_openai_model(spec: ModelSpec) -> bool:
    return tasks.find_task(spec.task).generates or spec.embeds or "moderate" in spec.request_kinds


def get_openai_model_document(name: str) -> dict[str, Any]:
    """Return a model in OpenAI's form. Raises `UnknownModel` if OpenAI's interface has no use for it."""
    spec = get_spec(name)
    if not _is_openai_model(spec):
        wanted = "generates text, gives vectors or tells harmful texts"
        message = f"{spec.name!r} is no model that {wanted}: GET /v1/models/{spec.name} shows it."
        raise UnknownModel(message)
    return make_openai_model(spec)


def make_openai_model(spec: ModelSpec) -> dict[str, Any]:
    """Return a model in OpenAI's form, with its task. `created` is 0, as the time of its creation is not known."""
    task = tasks.find_task(spec.task).name
    return {"id": spec.name, "object": "model", "created": 0, "owned_by": "inference", "task": task}
