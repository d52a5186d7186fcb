"""The outcome of a job whose inputs were answered, or which is condemned."""

import logging
from collections.abc import Sequence
from typing import Any

from inference import errors
from inference.catalog import tasks
from inference.catalog.sizes import lengths
from inference.catalog.specs import ModelSpec
from inference.engines.runtime.exception_diagnosis import shorten_detail
from inference.engines.runtime.json_values import estimate_size_in_numbers
from inference.fields.json_field import escape_for_database
from inference.store import wholes
from inference.store.outcome_records import Outcome
from inference.store.transitions import Claimed
from inference.streams import output_texts
from inference.telemetry import logs

logger = logging.getLogger(__name__)

VERDICTS = {
    error.code: error
    for error in (
        errors.Crashed("The process that ran this input died, twice, and with this input alone."),
        errors.DeviceFailed("The device went into an error state with this input alone, twice."),
        errors.JobFailure("The worker failed with this input alone, twice; its log says why."),
        errors.TimedOut("This input ran past the model's time_limit_s, alone in its batch, twice."),
    )
}


def make_outcome(
    spec: ModelSpec,
    job: Claimed,
    answers: Sequence[object],
    *,
    full_text: bool = False,
    generated: int | None = None,
) -> Outcome:
    """Return the outcome of a job with these answers to its items.

    A job of several items fails with its first failed item. `full_text` is True if the engine puts the prompt before
    the text that it generates, unless the job's parameters ask otherwise. `generated` is the number of characters that
    a model generated step by step, if that is known.
    """
    is_list = lengths.is_input_list(spec, job.inputs)
    for index, answer in enumerate(answers, job.place or 0):
        if isinstance(answer, errors.InferenceError):
            is_of_input = is_list and not answer.message.startswith("parameters.")
            where = f"inputs[{index}]: " if is_of_input else ""
            if isinstance(answer, errors.JobFailure):
                known_as = job.whole or job.id
                said, trace = logs.mask_model_text(answer.full_message), f"\n{answer.trace}" if answer.trace else ""
                logger.warning("job=%s model=%s %s: %s%s%s", known_as, job.model, answer.code, where, said, trace)
            return make_failure(job, answer, where)
    if (held := estimate_size_in_numbers(answers)) > lengths.MOST_ANSWERED:
        error = errors.InvalidInput if is_list or spec.is_built_in else errors.BadOutput
        return make_failure(job, error(wholes.describe_overflow(held)))
    output = list(answers) if is_list else answers[0]
    before = None if is_list else _measure_prompt_length(spec, job, output, full_text=full_text, generated=generated)
    return _make_job_outcome(job, output=output, output_size=held if job.whole else None, prompt_length=before)


def _measure_prompt_length(
    spec: ModelSpec, job: Claimed, output: object, *, full_text: bool, generated: int | None
) -> int | None:
    """Return how many characters of the prompt stand before the generated text, or None if there is no such text."""
    text = output_texts.extract_text(output)
    if text is None:
        return None
    if generated is not None:
        return max(0, len(text) - generated)
    if not tasks.find_task(spec.task).generates:
        return None
    requested = job.parameters.get("return_full_text")
    return len(_find_prompt(job)) if requested or (requested is None and full_text) else 0


def _find_prompt(job: Claimed) -> str:
    """Return the prompt that the full text of an answer begins with; it may be empty.

    In a chat it is the text of the assistant's message at its end, if the model continues that message.
    """
    text = job.inputs
    if isinstance(text, list) and text:
        is_continued = job.parameters.get("continue_final_message") is not False
        last = text[-1]
        text = last["content"] if is_continued and isinstance(last, dict) and last.get("role") == "assistant" else ""
    return text if isinstance(text, str) else ""


def make_condemned_outcome(job: Claimed, verdict: str, raised: str = "", trace: str = "") -> Outcome:
    """Return the outcome of a job by a verdict of the main process, with what its call raised, and where.

    The error of a part names the range of its inputs in the whole list: more is not known.
    """
    where = ""
    if job.place is not None:
        last = job.place + len(job.inputs) - 1
        where = f"inputs[{job.place}]: " if last == job.place else f"inputs[{job.place}] to inputs[{last}]: "
    error = VERDICTS[verdict]
    return make_failure(job, type(error)(error.message, raised=raised, trace=trace), where)


def make_failure(job: Claimed, error: errors.InferenceError, where: str = "") -> Outcome:
    """Return the outcome of a job that fails with this error.

    The texts are bounded, as they may quote the input or be an engine's own.
    """
    return _make_job_outcome(
        job,
        error_code=error.code,
        error_detail=shorten_detail(escape_for_database(f"{where}{error.message}")),
        error_raised=shorten_detail(escape_for_database(error.raised)),
        error_trace=escape_for_database(error.trace),
    )


def replace_unstorable_outcome(refused: Outcome) -> Outcome:
    detail = "The database refused to store the answer."
    return refused._replace(
        output=None,
        output_size=None,
        error_code=errors.BadOutput.code,
        error_detail=detail,
        error_raised="",
        error_trace="",
    )


def _make_job_outcome(job: Claimed, **values: Any) -> Outcome:
    return Outcome(
        job_id=job.id,
        model=job.model,
        whole=job.whole,
        created_at=job.created_at,
        started_at=job.started_at,
        traceparent=job.traceparent,
        **values,
    )
