"""What an exception of an engine means, and what of it the public may read."""

import re
import sys

from inference.catalog import words

MAX_DETAIL = 2000  # characters of a message that go on a row

_OUT_OF_MEMORY = (
    "out of memory",
    "alloc_failed",
    "cublas_status_not_initialized",  # there was no room for a handle; so it is with the next one
    "cudnn_status_not_initialized",
    "defaultcpuallocator",
    "can't allocate memory",
    "cannot allocate memory",
)
_DEVICE_FAILURES = (
    "cuda error",
    "hip error",
    "device-side assert",
    "illegal memory access",
    "cublas_status_execution_failed",
    "cudnn_status_execution_failed",
    "unspecified launch failure",
)
_PATH = re.compile(r"(?<![\w:/.<])(?:/[\w.@+~ -]*[\w.@+~-])+/(?=[\w.@+~-])")
_SECRETS = (
    (re.compile(r"(?<=://)[^/\s@]+@"), "***@"),
    (re.compile(r"\bhf_\w{8,}"), "***"),
    (re.compile(r"(?i)\b(bearer\s+|(?:token|password|secret|api_?key)\s*[=:]\s*)\S+"), r"\1***"),
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the call did not fit: a smaller one may. Told by name and message, so that torch need not be here."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = _text(error).lower()
    return isinstance(error, RuntimeError) and any(sign in text for sign in _OUT_OF_MEMORY)


def is_device_failure(error: BaseException) -> bool:
    """Whether the device is in an error state that lasts as long as this process. Where torch uses one, a known good
    call tells; of another library's the words do."""
    if is_in_use():
        return device_problem() is not None
    if is_out_of_memory(error) or not isinstance(error, RuntimeError):
        return False
    text = _text(error).lower()
    return type(error).__name__ == "AcceleratorError" or any(sign in text for sign in _DEVICE_FAILURES)


def is_in_use() -> bool:
    """Whether torch has begun to use a GPU in this process."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def device_problem() -> Exception | None:
    """Why the GPUs of this process compute nothing, by a tiny operation on each, for which it waits."""
    torch = sys.modules["torch"]
    try:
        for index in range(torch.cuda.device_count()):
            torch.cuda.synchronize(index)
            torch.ones(2, device=f"cuda:{index}").sum().item()
    except Exception as error:
        return None if isinstance(error, torch.OutOfMemoryError) else error
    return None


def describe(error: BaseException) -> str:
    """The type and message of an exception, for the model's author: one that may be shown, so no paths or secrets."""
    name, message = type(error).__name__, message_of(error)
    return shorten(f"{name}: {message}" if message else name)


def message_of(error: BaseException) -> str:
    """Return the message of an exception, without paths and secrets."""
    message = _text(error).strip()
    if "Traceback (most recent call last)" in message:  # transformers quotes whole tracebacks: the last line says it
        message = message.splitlines()[-1].strip()
    for pattern, shown in _SECRETS:
        message = pattern.sub(shown, message)
    return shorten(_PATH.sub("", message))


def _text(error: BaseException) -> str:
    """Its message is of the engine's own code, which may raise."""
    try:
        return str(error)
    except Exception:
        return ""


def shorten(text: str) -> str:
    return words.shorten(text, MAX_DETAIL)
