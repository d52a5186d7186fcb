"""The formats of log lines: for people to read, or with LOG_FORMAT=json one JSON object a line.

A JSON object has the ids of what its line is about. They are the ids that are bound here, and those that the line's own
text names: "batch=%s failed=%d" has a `batch` and a `failed`. So the ids cost nothing where lines are for people to
read, and no more than a context variable where they are JSON.

The module does not import Django, as the web server's main process uses it too (`server_lines`).
"""

import contextlib
import datetime
import functools
import json
import logging
import logging.config
import math
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from inference.telemetry import exception_descriptions
from inference.telemetry.control_characters import escape_text

logger = logging.getLogger(__name__)

IS_JSON = os.environ.get("LOG_FORMAT") == "json"
quotes = False  # True if lines may quote inputs, for developers of a model; set once the settings are read
START = '{"time": '  # beginning of each JSON line
READABLE = "%(asctime)s %(levelname)-7s %(name)s %(message)s%(request_id)s"

GOES_ON = "\n    "

_bound: ContextVar[Mapping[str, Any]] = ContextVar("bound", default={})  # noqa: B039 - never changed, but replaced
_of_process: dict[str, Any] = {}
_CONVERSION = re.compile(r"(?:(\w+)=)?%[-#0 +]*[\d.]*([a-zA-Z%])")


def replace_bound_ids(**ids: Any) -> None:
    """Bind these ids, and no others, to the lines that this thread logs from now on."""
    _bound.set(ids)


def bind_more_ids(**ids: Any) -> None:
    """Bind these ids, too, to the lines that this thread logs from now on."""
    _bound.set({**_bound.get(), **ids})


def get_bound_id(name: str) -> str:
    return str(_bound.get().get(name, ""))


@contextlib.contextmanager
def bind_ids(**ids: Any) -> Iterator[None]:
    token = _bound.set({**_bound.get(), **ids})
    try:
        yield
    finally:
        _bound.reset(token)


def bind_process_ids(**ids: Any) -> None:
    """Bind these ids to all lines of this process."""
    _of_process.update(ids)


def mask_model_text(text: object) -> object:
    """Return a model's own words, or "…" if lines may not quote inputs.

    The words may quote an input. Rows have them. Lines do not, as many people may read the place where lines are sent.
    """
    return text if quotes else "…"


def describe_error(error: BaseException) -> str:
    """Return a description of the error for a line about its consequences."""
    try:
        return repr(error) if quotes else exception_descriptions.describe_for_logs(error)
    except Exception:  # raised by the error's own code that makes its text
        return type(error).__name__


class _Formatter(logging.Formatter):
    def formatException(self, ei: Any) -> str:
        return super().formatException(ei) if quotes else exception_descriptions.format_exception(*ei[1:])


class JsonFormatter(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {**_bound.get(), **_read_named_arguments(record), **_of_process}
        line = {
            "time": _format_time(record.created), "level": record.levelname, "logger": record.name,
            "message": record.getMessage(),
        }  # fmt: skip
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(
            {**line, **{name: _to_json_value(value) for name, value in fields.items() if name not in line}}
        )


class ReadableFormatter(_Formatter):
    """A formatter of lines for people to read.

    No text that a line quotes looks like another line, or acts on a terminal. Further lines of a record are indented.
    """

    def format(self, record: logging.LogRecord) -> str:
        return escape_text(super().format(record)).replace("\n", GOES_ON)


def make_formatter() -> logging.Formatter:
    """Return the formatter that LOG_FORMAT names."""
    return JsonFormatter() if IS_JSON else ReadableFormatter(READABLE, defaults={"request_id": ""})


def configure(config: dict[str, Any]) -> None:
    from django.conf import settings

    global quotes  # noqa: PLW0603 - of this process
    quotes = settings.DEVELOPMENT and not IS_JSON
    logging.config.dictConfig(config)
    if IS_JSON:
        for name in ("transformers", "huggingface_hub"):  # these libraries have handlers of their own
            logging.getLogger(name).handlers.clear()
            logging.getLogger(name).propagate = True
        logging.captureWarnings(True)
        # Python documents both hooks as names to assign.
        sys.excepthook = lambda *error: logger.critical("the program ends", exc_info=error)
    if not quotes:
        threading.excepthook = _log_thread_end


def format_json_line(logger: str, text: str) -> str:
    written_at = _format_time(time.time())  # noqa: TID251 - its host's clock, as logging has it for all other lines
    return json.dumps({"time": written_at, "level": "INFO", "logger": logger, "message": text})


def format_program_json_line(program: str, text: str) -> str:
    """Return a line of one of several programs as JSON with the program's name, also if the line is no JSON."""
    if not _is_own_json_line(text):
        text = format_json_line(program or "up", text)
    return f'{text[:-1]}, "program": {json.dumps(program or "up")}}}'


def _is_own_json_line(text: str) -> bool:
    """Return True if the text is one of our JSON lines. The text that a model prints may only look like one."""
    try:
        return text.startswith(START) and text.endswith("}") and bool(json.loads(text))
    except ValueError:
        return False


def _log_thread_end(args: threading.ExceptHookArgs) -> None:
    if args.exc_value and not isinstance(args.exc_value, SystemExit):
        error = (args.exc_type, args.exc_value, args.exc_traceback)
        logger.critical("thread=%s ends", args.thread and args.thread.name, exc_info=error)


def _format_time(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="milliseconds")


def _read_named_arguments(record: logging.LogRecord) -> dict[str, Any]:
    if not isinstance(record.args, tuple):
        return {}
    names = _list_argument_names(str(record.msg))
    return {name: value for name, value in zip(names, record.args, strict=False) if name}


@functools.lru_cache(maxsize=1024)
def _list_argument_names(text: str) -> list[str]:
    """Return the name of each argument of a line's text, in order. It is empty for an argument without a name."""
    return [name for name, kind in _CONVERSION.findall(text) if kind != "%"]


def _to_json_value(value: object) -> Any:
    return value if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)) else str(value)
