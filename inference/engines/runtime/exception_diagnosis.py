"""The meaning of an engine's exceptions, and the part of them that the public may read."""

import re
import sys

from inference.values.error_phrases import cut_text

MAX_DETAIL = 2000  # characters of a message that are stored in a row

_OUT_OF_MEMORY = (
    "out of memory",
    "alloc_failed",
    "cublas_status_not_initialized",  # there was no memory for a handle; the next sign means the same
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
    """Return True if the call did not fit into memory: a smaller one may.

    It goes by the name and the message of the error, so that torch need not be imported.
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = _read_message(error).lower()
    return isinstance(error, RuntimeError) and any(sign in text for sign in _OUT_OF_MEMORY)


def is_device_failure(error: BaseException) -> bool:
    """Return True if the device is in an error state that lasts as long as this process.

    Where torch uses a GPU, a known good call decides. Else the type and the message of the error do, as it comes from
    another library.
    """
    if is_cuda_initialized():
        return probe_gpus() is not None
    if is_out_of_memory(error) or not isinstance(error, RuntimeError):
        return False
    text = _read_message(error).lower()
    return type(error).__name__ == "AcceleratorError" or any(sign in text for sign in _DEVICE_FAILURES)


def is_cuda_initialized() -> bool:
    """Return True if torch has begun to use a GPU in this process."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def probe_gpus() -> Exception | None:
    """Return the error of the first GPU of this process that fails a tiny operation, for which it waits.

    A GPU that only lacks memory computes. Return None if all GPUs compute.
    """
    torch = sys.modules["torch"]
    for index in range(torch.cuda.device_count()):
        try:
            torch.cuda.synchronize(index)
            torch.ones(2, device=f"cuda:{index}").sum().item()
        except torch.OutOfMemoryError:
            continue
        except Exception as error:
            return error
    return None


def describe_exception(error: BaseException) -> str:
    """Return the type and message of an exception for the model's author, without paths and secrets.

    So the text may be shown.
    """
    name, message = type(error).__name__, clean_message(error)
    return shorten_detail(f"{name}: {message}" if message else name)


def clean_message(error: BaseException) -> str:
    """Return the message of an exception, without paths and secrets."""
    message = _read_message(error).strip()
    if "Traceback (most recent call last)" in message:  # transformers quotes tracebacks: the last line has the error
        message = message.splitlines()[-1].strip()
    for pattern, shown in _SECRETS:
        message = pattern.sub(shown, message)
    return shorten_detail(_PATH.sub("", message))


def _read_message(error: BaseException) -> str:
    """Return the message of an exception; empty where the engine's own code that makes it raises an error."""
    try:
        return str(error)
    except Exception:
        return ""


def shorten_detail(text: str) -> str:
    return cut_text(text, MAX_DETAIL)
