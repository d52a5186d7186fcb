"""Requests of OpenAI's and Hugging Face's clients to a model that generates text, read into a job.

A field that would change the answer and is not served is refused by name. A field that would not is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from api.requests.dialects.base import (
    SERVICE_TIER,
    DialectRequest,
    find_model,
    read_flag,
    read_non_null_fields,
    read_priority,
    refuse_unknown_fields,
    refuse_unserved_fields,
)
from api.requests.dialects.generation import answer_grammars, chat_messages, tools
from inference.catalog import tasks
from inference.catalog.input_checks import TOKENS, is_token_list
from inference.catalog.neutral_values import OPENAI, is_neutral
from inference.catalog.sizes.lengths import CHAT_TOKENS
from inference.catalog.sizes.lengths import NONE as NOTHING
from inference.catalog.specs import ModelSpec
from inference.errors import make_field_error
from inference.submission.submissions import Submission

RENAMED = {  # the client's name: the model's
    "max_tokens": "max_new_tokens", "max_completion_tokens": "max_new_tokens", "min_tokens": "min_new_tokens",
}  # fmt: skip
LIMITS = ("max_tokens", "max_completion_tokens", "max_new_tokens")
OWN = {"return_full_text": False, "details": True}  # parameters that the form of the answer needs
TURN = {"continue_final_message": False, "add_generation_prompt": True}  # fields of vLLM, and their defaults
MOST_ANSWERS = 128  # OpenAI's limit
ECHO = "echo"
PROMPT = ("prompt_logprobs", "prompt_only")  # parameters that stand for `echo` with other fields
LOGPROBS = ("logprobs", "top_logprobs")
MOST_LOGPROBS = 20
STREAM_OPTIONS = ("include_usage", "include_obfuscation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion(DialectRequest):
    is_streamed: bool
    include_usage: bool  # the counts of tokens, at the end of the stream
    answers: int  # of each prompt


def read_chat(document: object, spec: ModelSpec | None = None) -> Completion:
    """Read a request to answer a chat.

    `spec` is the model that the address names. Without it the body names the model. Raises `InvalidInput`,
    `UnknownModel`.
    """
    given = read_non_null_fields(document)
    return make_chat_request(given, spec, chat_messages.read_messages(given.get("messages")))


def make_chat_request(given: dict[str, Any], spec: ModelSpec | None, chat: list[dict[str, Any]]) -> Completion:
    """Return the request to answer a chat, which is as templates take it. Raises the errors of `read_chat`."""
    turn = _read_turn(given, chat[-1]["role"])
    rest = {name: value for name, value in given.items() if name not in TURN}
    return _make_completion(rest, spec, "messages", [chat], own=turn, most_tokens=CHAT_TOKENS)


def read_text_completion(document: object, spec: ModelSpec | None = None) -> Completion:
    """Read a request to continue a text. `spec` and the errors are those of `read_chat`."""
    given = read_non_null_fields(document)
    return _make_completion(given, spec, "prompt", _read_prompts(given))


def _read_turn(given: dict[str, Any], last_role: str) -> dict[str, bool]:
    """Return the parameter that decides if the model continues the last message, from two fields of vLLM.

    The model's own pipeline would always continue a last message of the assistant.
    """
    goes_on, answers = (read_flag(given, name, default=default) for name, default in TURN.items())
    if goes_on and answers:
        reason = "send add_generation_prompt: false with it, as a new message is begun otherwise."
        raise make_field_error("continue_final_message", reason)
    if not goes_on and not answers:
        reason = "false is served beside continue_final_message: true only; leave it out."
        raise make_field_error("add_generation_prompt", reason)
    return {"continue_final_message": goes_on} if goes_on or last_role == "assistant" else {}


def _make_completion(
    given: dict[str, Any],
    spec: ModelSpec | None,
    field: str,
    prompts: list[Any],
    *,
    own: Mapping[str, Any] = NOTHING,
    most_tokens: int | None = None,
) -> Completion:
    """Return the request whose prompts were read from `field`: a text or a chat each.

    `own` are parameters beside those of the body. `most_tokens` is how many tokens may be generated where neither the
    request nor the model's table of parameters says how many.
    """
    spec = find_model(given, spec)
    if not tasks.find_task(spec.task).generates:
        raise make_field_error("model", f"{spec.name!r} does not generate text: post to /v1/models/{spec.name}.")
    form, form_names = _read_form(given, spec, is_chat=field == "messages")
    parameters, names = _read_settings(given, spec, field, most_tokens)
    parameters |= {**own, **form}
    if "tools" in form and not tools.requires_call(form) and not read_flag(given, tools.PARALLEL, default=True):
        parameters |= _add_stop(spec, parameters.get("stop", []), tools.CLOSE)  # which ends the first call
    if read_flag(given, "ignore_eos"):
        parameters |= _ignore_end(spec, parameters)
    answers, is_streamed = _read_answers(given), read_flag(given, "stream")
    inputs, places = _repeat_prompts(field, prompts, answers)
    _refuse_combination(field, parameters, count=len(inputs), answers=answers, is_streamed=is_streamed)
    return Completion(
        submission=Submission(
            spec=spec,
            inputs=inputs if len(inputs) > 1 else inputs[0],
            parameters=parameters,
            priority=read_priority(given),
        ),
        words={**names, **form_names, "parameters.": "", **places, "inputs": field},
        is_streamed=is_streamed,
        include_usage=_read_include_usage(given.get("stream_options", {})),
        answers=answers,
    )


def _read_settings(
    given: dict[str, Any], spec: ModelSpec, field: str, most_tokens: int | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the parameters that stand in the body as such, and the client's names of those that have two."""
    form_fields = (*answer_grammars.FIELDS, *LOGPROBS, *(tools.FIELDS if field == "messages" else (ECHO,)))
    own_names = (field, "model", "stream", "stream_options", "n", "ignore_eos", SERVICE_TIER, *form_fields)
    rest = {name: value for name, value in given.items() if name not in own_names}
    if len(limits := [name for name in LIMITS if name in rest]) > 1:
        raise make_field_error(limits[0], f"is the same as {limits[1]}; send one of them.")
    names = {f"parameters.{ours}": theirs for theirs, ours in RENAMED.items() if theirs in rest}
    return _add_token_limit(spec, _read_parameters(spec, rest), most_tokens), names


def _repeat_prompts(field: str, prompts: list[Any], answers: int) -> tuple[list[Any], dict[str, str]]:
    """Return each prompt as often as it is to be answered, and the client's names of the places of several."""
    inputs = [prompt for prompt in prompts for _ in range(answers)]
    if len(inputs) == 1:
        return inputs, {}
    names = [field] if len(prompts) == 1 else [f"{field}[{index}]" for index in range(len(prompts))]
    return inputs, {f"inputs[{index}]": names[index // answers] for index in range(len(inputs))}


def _refuse_combination(
    field: str, parameters: Mapping[str, Any], *, count: int, answers: int, is_streamed: bool
) -> None:
    """Raise `InvalidInput` for settings that are not served together. `count` is the number of all answers."""
    if is_streamed and count > 1:
        several = field if answers == 1 else "n"
        raise make_field_error(several, "a stream has one answer; send stream: false, or ask for one.")
    if is_streamed:
        refuse_streamed_echo(parameters)
    if answers > 1 and "seed" in parameters:
        raise make_field_error("n", "with a seed all answers are the same; leave out one of them.")
    if answers > 1 and parameters.get("prompt_only"):
        raise make_field_error("n", "without new tokens all answers are the same; leave it out.")


def refuse_streamed_echo(parameters: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` if a text with these parameters begins with its prompt, which a stream does not have."""
    if parameters.get("return_full_text"):
        raise make_field_error(ECHO, "is not served with a stream; leave out one of them.")


def _read_form(given: dict[str, Any], spec: ModelSpec, *, is_chat: bool) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the parameters for the form of the answer, and the client's names of them and of their parts."""
    grammar, names = answer_grammars.read_grammar(given)
    parameters: dict[str, Any] = {"grammar": grammar} if grammar else {}
    calls, call_names = tools.read_tools(given) if is_chat else ({}, {})
    own = given.get(answer_grammars.OWN)
    if calls and (beside := grammar or (own if isinstance(own, dict) else {})):
        if "grammar" in calls:
            other = names.get("parameters.grammar", answer_grammars.OWN)
            raise make_field_error(other, 'is served without tools, or with tool_choice: "auto" or "none".')
        parameters["grammar"] = {**beside, "calls": tools.make_call_schema(calls["tools"], tools.ARGUMENTS)}
    if (logprobs := _read_logprobs(given, is_chat=is_chat)) is not None:
        parameters["logprobs"] = logprobs
    if not is_chat and read_flag(given, ECHO):
        parameters |= _make_echo(spec, given, logprobs)
        names |= {f"parameters.{name}": ECHO for name in PROMPT}
    parameters, names = {**parameters, **calls}, {**call_names, **names}
    if unknown := next((name for name in parameters if name not in spec.parameters), ""):
        name = names.get(f"parameters.{unknown}", unknown)
        raise make_field_error(name, f"is not served by {spec.name!r}; leave it out.")
    return parameters, names


def _read_answers(given: Mapping[str, Any]) -> int:
    answers = given.get("n", 1)
    if not isinstance(answers, int) or isinstance(answers, bool) or not 1 <= answers <= MOST_ANSWERS:
        raise make_field_error("n", f"must be a whole number from 1 to {MOST_ANSWERS}.")
    return answers


def _read_logprobs(given: Mapping[str, Any], *, is_chat: bool) -> int | None:
    """Return how many of the likeliest tokens are wanted of each step, or None if no log probabilities are."""
    if not is_chat and "top_logprobs" in given:
        raise make_field_error("top_logprobs", "is for chats; send a number as logprobs.")
    if is_chat and not read_flag(given, "logprobs"):
        if given.get("top_logprobs", 0) != 0:
            raise make_field_error("top_logprobs", "send logprobs: true with it.")
        return None
    name = "top_logprobs" if is_chat else "logprobs"
    top = given.get(name, 0 if is_chat else False)
    if top is False and not is_chat:
        return None
    if not isinstance(top, int) or isinstance(top, bool) or not 0 <= top <= MOST_LOGPROBS:
        raise make_field_error(name, f"must be a whole number from 0 to {MOST_LOGPROBS}.")
    return top


def _make_echo(spec: ModelSpec, given: Mapping[str, Any], logprobs: int | None) -> dict[str, Any]:
    """Return the parameters for an answer that begins with its prompt. It may be the prompt alone."""
    scores = {} if logprobs is None else {"prompt_logprobs": logprobs}
    limits = [given[name] for name in LIMITS if name in given and not isinstance(given[name], bool)]
    if 0 not in limits:
        return {"return_full_text": True, **scores}
    fewest = spec.parameters["max_new_tokens"].min if "max_new_tokens" in spec.parameters else None
    return {"return_full_text": True, **scores, "prompt_only": True, "max_new_tokens": int(fewest or 1)}


def _add_stop(spec: ModelSpec, stops: object, text: str) -> dict[str, Any]:
    """Return the parameter with one more string that ends a text. Stops that are not valid are left to be refused."""
    most = spec.parameters["stop"].max_items or 0
    return {"stop": [*stops, text]} if isinstance(stops, list) and len(stops) < most else {}


def _ignore_end(spec: ModelSpec, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameter by which an answer has all tokens that it may have. Raises `InvalidInput`."""
    if "grammar" in parameters:
        raise make_field_error("ignore_eos", "is not served beside a form of the answer.")
    most = parameters.get("max_new_tokens", spec.parameters["max_new_tokens"].default)
    if most is None:
        raise make_field_error("ignore_eos", "send max_tokens with it.")
    return {"min_new_tokens": most} if isinstance(most, int) else {}


def _read_include_usage(options: object) -> bool:
    if not isinstance(options, dict):
        raise make_field_error("stream_options", "must be an object.")
    refuse_unserved_fields("stream_options", options, STREAM_OPTIONS)
    return read_flag(options, "include_usage", "stream_options.")


def _read_parameters(spec: ModelSpec, rest: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters that the body gives: the model's own may stand beside OpenAI's."""
    known = {**RENAMED, **{name: name for name in spec.parameters if name not in (*OWN, *TURN, *PROMPT)}}
    refuse_unknown_fields(rest, known)
    shared = tasks.find_task(spec.task).parameters
    parameters = {
        known[name]: value
        for name, value in rest.items()
        if name in known
        and not (is_neutral(OPENAI, name, value) and spec.parameters[known[name]] == shared.get(known[name]))
    }
    return {**OWN, **_enable_sampling(spec, _normalize_stop(parameters))}


def _add_token_limit(spec: ModelSpec, parameters: dict[str, Any], most_tokens: int | None) -> dict[str, Any]:
    described = spec.parameters["max_new_tokens"]
    if most_tokens is None or described.default is not None or parameters.keys() & {"max_new_tokens", "max_length"}:
        return parameters
    return {**parameters, "max_new_tokens": int(min(most_tokens, described.max or most_tokens))}


def _normalize_stop(parameters: dict[str, Any]) -> dict[str, Any]:
    stop = parameters.pop("stop", None)
    if is_neutral(OPENAI, "stop", stop):
        return parameters
    return {**parameters, "stop": [stop] if isinstance(stop, str) else stop}


def _enable_sampling(spec: ModelSpec, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters, with sampling on where a temperature or a top_p is given that is not greedy."""
    named = tasks.find_task(spec.task).translate(parameters)
    return {"do_sample": True, **named} if parameters.keys() & {"temperature", "top_p"} else named


def _read_prompts(given: Mapping[str, Any]) -> list[Any]:
    """Return the prompts as jobs have them: each a text, or tokens of the model's own tokenizer."""
    prompt = given.get("prompt")
    prompts = prompt if isinstance(prompt, list) and not is_token_list(prompt) else [prompt]
    if not prompts or not all(isinstance(each, str) or is_token_list(each) for each in prompts):
        raise make_field_error("prompt", "must be a string, tokens (a list of whole numbers), or a list of either.")
    return [each if isinstance(each, str) else {TOKENS: each} for each in prompts]
