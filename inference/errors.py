"""The errors of the service, with messages that the public may read.

`code` is stable and part of the interface. `retryable` is true if the same call may succeed later. The message of an
exception is public: it says what would be right, and contains no secret. What an engine's own code or a library raised
is for operators, and is kept beside the message: `raised` has its words, and `trace` where it was raised.
"""

from typing import Any
from uuid import UUID

UNREADABLE = "The model cannot read this input or its parameters."
EMPTY_TEXT = "The text is empty for this model's tokenizer: send at least one word."


class InferenceError(Exception):
    code = "error"
    retryable = False

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float | None = None,
        model: str = "",
        raised: str = "",
        trace: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s
        self.model = model  # name of the model whose state is the reason
        self.raised, self.trace = raised, trace

    @property
    def full_message(self) -> str:
        """The whole text of the error, for operators."""
        return f"{self.message} {self.raised}".rstrip()


class SubmissionError(InferenceError):
    code = "not_accepted"  # nothing was stored


class UnknownModel(SubmissionError):
    code = "unknown_model"


class InvalidInput(SubmissionError):
    """An input, or another part of the request, cannot be accepted.

    `field` is the path of what is wrong in the request's body, such as `parameters.top_k`.
    """

    code = "invalid_input"

    def __init__(self, message: str, *, field: str = "inputs", raised: str = "", trace: str = "") -> None:
        super().__init__(message, raised=raised, trace=trace)
        self.field = field


def make_field_error(field: str, reason: str) -> InvalidInput:
    """Return the error of a field, whose path begins the message."""
    return InvalidInput(f"{field}: {reason}", field=field)


class ContextLengthExceeded(InvalidInput):
    """The input is longer than the model reads.

    The message has the words that programs written for OpenAI look for.
    """

    code = "context_length_exceeded"


def make_context_length_error(limit: int, tokens: int, *, at_least: bool = False) -> ContextLengthExceeded:
    """Return the error of an input that is too long.

    Args:
        limit: Tokens that an input may have, beside those that the model is to generate.
        tokens: Tokens of the input.
        at_least: True if the input may have more tokens, as no more of it was read.
    """
    found = format_token_count(tokens, at_least=at_least)
    return ContextLengthExceeded(
        f"Input tokens exceed the configured limit of {limit} tokens. Your messages resulted in {found}. Send less."
    )


def format_token_count(tokens: int, *, at_least: bool) -> str:
    """Return a number of tokens in words. `at_least` is that of `make_context_length_error`."""
    return f"{tokens} tokens{' or more' if at_least else ''}"


class NoneAccepted(InvalidInput):
    """None of a bulk's inputs can be accepted. `rejected` has the index, code and detail of each."""

    def __init__(self, rejected: list[dict[str, Any]]) -> None:
        super().__init__(f"None of {len(rejected)} inputs can be accepted. The first: {rejected[0]['detail']}")
        self.rejected = rejected


class IdempotencyMismatch(SubmissionError):
    code = "idempotency_mismatch"  # the key was used with another request


class UnknownOwner(SubmissionError):
    code = "unknown_owner"  # the user who submits was deleted meanwhile


class TooManyQueued(SubmissionError):
    code = "too_many_queued"  # the owner's share of the queue is used up
    retryable = True


class QueueFull(SubmissionError):
    code = "queue_full"
    retryable = True


class Overloaded(SubmissionError):
    code = "overloaded"  # the wait would be too long
    retryable = True


class NoWorker(SubmissionError):
    """No worker serves the model now.

    `raised` is what a worker reports about it. It is for operators only, as it may quote an engine.
    """

    code = "no_worker"
    retryable = True

    def __init__(self, message: str, *, model: str, raised: str) -> None:
        super().__init__(message, retry_after_s=5, model=model)
        self.raised = raised


class ModelsFileRefused(NoWorker):
    """This process has never read a valid models file. `raised` says what is wrong with the file."""

    code = "models_file_refused"

    def __init__(self, raised: str) -> None:
        super().__init__(
            "No model is served before the models file of this service is mended.", model="", raised=raised
        )


class JobNotFound(InferenceError):
    code = "job_not_found"  # no such job, or another owner's


class JobInUse(InferenceError):
    code = "job_in_use"  # it cannot be deleted


class UnknownPosition(InferenceError):
    code = "bad_request"  # the job's stream was never at this position, though that of another job may have been


class BulkNotFound(InferenceError):
    code = "bulk_not_found"  # no such bulk, or another owner's


class StoreUnavailable(InferenceError):
    """The database did not answer in time.

    `job_id` or `bulk_id` names a job or bulk that may have been stored. Without either it is certain that nothing was.
    """

    code = "store_unavailable"
    retryable = True

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float | None = None,
        job_id: UUID | None = None,
        bulk_id: UUID | None = None,
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.job_id = job_id
        self.bulk_id = bulk_id


def make_nothing_stored_error() -> StoreUnavailable:
    return StoreUnavailable(
        "The database did not answer in time; nothing was stored by this request. Try again later.", retry_after_s=5
    )


class JobFailure(InferenceError):
    code = "failed"  # recorded on the row of a job that failed


class EngineError(JobFailure):
    """The engine raised an exception, of which nothing is public."""

    code = "engine_error"

    def __init__(self, raised: str, *, trace: str = "") -> None:
        super().__init__("The model failed on this input.", raised=raised, trace=trace)


class BadOutput(JobFailure):
    code = "bad_output"  # the engine answered with the wrong shape, or NaN


class OutOfMemory(JobFailure):
    """The item does not fit on the device, even alone. Nothing of the exception that was raised is public."""

    code = "out_of_memory"

    def __init__(self, raised: str, *, trace: str = "") -> None:
        super().__init__("This input does not fit in the memory of the device.", raised=raised, trace=trace)


class TimedOut(JobFailure):
    code = "timed_out"  # the job ran past the model's time_limit_s, alone and twice


class Crashed(JobFailure):
    code = "crashed"  # the process that ran the job died, with the job alone and twice


class DeviceFailed(JobFailure):
    code = "device_failed"  # the device is in an error state
    retryable = True


class ModelUnavailable(JobFailure):
    code = "model_unavailable"  # the model could not be loaded
    retryable = True


class Lost(JobFailure):
    code = "lost"  # the job was given back to the queue too often
    retryable = True


class Expired(JobFailure):
    code = "expired"  # the job was not started before its deadline


RETRYABLE_OUTCOMES = frozenset(error.code for error in JobFailure.__subclasses__() if error.retryable)


class BrokerUnavailable(InferenceError):
    """The broker cannot be used. Clients never see this error.

    A job is accepted without its message, which is sent later.
    """

    code = "broker_unavailable"
    retryable = True


class NotYet(InferenceError):
    """The process cannot run the job now, but later. Only workers see this error.

    One reason is that the job's entry of models.toml is one that the worker has not taken over yet. The job runs once
    the worker has taken the entry over.
    """

    code = "not_yet"
    retryable = True
