"""The reader of models.toml, which checks every entry.

A bad file is refused with a `CatalogError` that names the file, the line and what would be right.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from inference.catalog import parameters, tasks
from inference.catalog.parameters import ParameterSpec, is_of_type
from inference.catalog.specs import (
    BACKENDS,
    FLAG_THRESHOLD,
    HARMLESS_LABELS,
    KINDS,
    NAME,
    ON_GPU,
    PRECISIONS,
    TF32,
    TORCH,
    TRANSFORMERS_ENGINE,
    Catalog,
    CatalogError,
    ModelSpec,
    list_table_keys,
)

ENGINE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
DTYPES = ("auto", "float32", TF32, "bfloat16", "float16")
LOADS = ("eager", "lazy")
MAX_BYTES = 2**24
MAX_DEPTH = 50  # of tables in tables: the depth that can be sent to children differs between versions of Python
PARSED = ("input", "parameters")  # the keys that have a grammar of their own

_BOUNDS: dict[str, tuple[float, float]] = {
    "max_batch_size": (1, 4096),
    "max_batch_tokens": (1, 10_000_000),
    "max_length": (0, 10_000_000),
    "max_wait_ms": (0, 60_000),
    "time_limit_s": (0.1, 86_400),
    "max_queued": (1, 10_000_000),
    "tolerance": (0, 1),
    "idle_unload_s": (1, 604_800),
}
_FRACTIONS = ("max_wait_ms", "time_limit_s", "idle_unload_s", "tolerance")
_CHOICES = {"backend": BACKENDS, "precision": PRECISIONS, "dtype": DTYPES, "load": LOADS}


def load_catalog(path: Path) -> Catalog:
    """Read and validate the file at `path`. Raises `CatalogError`."""
    return parse_catalog(read_models_file_text(path), str(path))


def read_models_file_text(path: Path) -> str:
    """Return the text of the file at `path`; raise `CatalogError` if it cannot be read."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise CatalogError(
            f"{path}: {error.strerror}. Set MODELS_FILE to a file that lists models, such as models.toml."
        ) from error
    if len(content) > MAX_BYTES:
        raise CatalogError(f"{path}: more than {MAX_BYTES} bytes. Set MODELS_FILE to a file that lists models.")
    try:
        return content.decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise CatalogError(f"{path}, line {line}: not UTF-8: save the file as UTF-8.") from error


def parse_catalog(text: str, file: str = "models.toml") -> Catalog:
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number with too many digits raises ValueError, too
        raise CatalogError(f"{file}: not valid TOML: {error}.") from error
    reader = _Reader(text, file)
    if not tables:
        raise CatalogError(f"{file}: no models. Add a table such as [sentiment] with task and model.")
    if _is_deep(tables):
        raise CatalogError(f"{file}: a table is too deep: at most {MAX_DEPTH} in each other.")
    try:
        catalog = {name: reader.read_model(name, table) for name, table in tables.items()}
        reader.check_default_models(catalog)
        return catalog
    except OverflowError as error:
        raise CatalogError(f"{file}: a number is too large: {error}.") from error


def _is_deep(tables: dict[str, Any]) -> bool:
    level: list[Any] = [tables]
    for _ in range(MAX_DEPTH):
        level = [value for one in level for value in (one.values() if isinstance(one, dict) else one)]
        level = [value for value in level if isinstance(value, dict | list)]
    return bool(level)


class _Reader:
    """A reader that turns tables into specs; it has the text of the file, so that an error can name a line."""

    def __init__(self, text: str, file: str) -> None:
        self.lines = text.splitlines()
        self.file = file

    def read_model(self, name: str, table: object) -> ModelSpec:
        if not isinstance(table, dict):
            self.raise_error(f"{name} is not in a table; put it below one such as [sentiment]", "", name)
        if not NAME.fullmatch(name):
            self.raise_error(f"the name {name!r} must match {NAME.pattern}, since it is part of URLs", name)
        self.refuse_unknown_keys(name, table)
        values = {key: self.check_value(name, key, value) for key, value in table.items() if key not in PARSED}
        if "input" in table:
            values["input"] = self.read_input(name, table["input"])
        own = self.read_parameters(name, table.get("parameters", {}))
        engine = tasks.find_engine_properties(values.get("engine", TRANSFORMERS_ENGINE))
        if engine.task:
            values.setdefault("task", engine.task)
        task = tasks.find_task(values.get("task", ""))
        known = {**task.parameters, **engine.list_parameters(task.name), **own}
        spec = ModelSpec(name=name, parameters=known, stated=frozenset(ON_GPU.keys() & table.keys()), **values)
        for problem, key in (*_find_conflicts(spec, table), *_find_backend_conflicts(spec, table)):
            self.raise_error(problem, name, key)
        return spec

    def refuse_unknown_keys(self, name: str, table: dict[str, Any]) -> None:
        known = list_table_keys()
        for key in table:
            if key not in known:
                close = difflib.get_close_matches(key, known, 1)
                hint = f"did you mean {close[0]}?" if close else f"known keys are {', '.join(known)}"
                self.raise_error(f"unknown key {key!r}; {hint}", name, key)

    def check_value(self, name: str, key: str, value: Any) -> Any:
        if key in _BOUNDS:
            low, high = _BOUNDS[key]
            whole = key not in _FRACTIONS
            if not is_of_type(value, "integer" if whole else "number") or not low <= value <= high:
                kind = "a whole number" if whole else "a number"
                self.raise_error(f"{key} must be {kind} from {low:g} to {high:g}, not {value!r}", name, key)
        elif key == "options":
            if not isinstance(value, dict):
                self.raise_error("options must be a table", name, key)
        elif key == "default_for":
            if not isinstance(value, list) or not value or any(kind not in KINDS for kind in value):
                known = ", ".join(f'"{kind}"' for kind in KINDS)
                self.raise_error(f"default_for must be a list of one or more of {known}, not {value!r}", name, key)
            return tuple(value)
        elif not isinstance(value, str) or not value:
            self.raise_error(f"{key} must be a string in quotes, not {value!r}", name, key)
        if key in _CHOICES and value not in _CHOICES[key]:
            self.raise_error(f"{key} must be one of {', '.join(_CHOICES[key])}, not {value!r}", name, key)
        if key == "engine" and not ENGINE.fullmatch(value):
            self.raise_error(f'engine must look like "package.module:Class", not {value!r}', name, key)
        return value

    def check_default_models(self, catalog: Catalog) -> None:
        """Refuse two models that are the default for one kind of request."""
        defaults: dict[str, str] = {}
        for name, spec in catalog.items():
            for kind in spec.default_for:
                if (other := defaults.setdefault(kind, name)) != name:
                    self.raise_error(
                        f'default_for has "{kind}", as has that of {other}: leave one out', name, "default_for"
                    )

    def read_parameters(self, name: str, table: object) -> dict[str, ParameterSpec]:
        if not isinstance(table, dict):
            self.raise_error(
                'parameters must be a table of tables, such as top_k = { type = "integer" }', name, "parameters"
            )
        return {key: self.read_parameter(name, key, value) for key, value in table.items()}

    def read_input(self, name: str, table: object) -> ParameterSpec:
        try:
            spec = parameters.parse_parameter_spec("input", table)
        except ValueError as error:
            self.raise_error(str(error).removeprefix("parameter "), name, "input")
        if spec.required or spec.default is not None:
            self.raise_error("an input is always required and has no default", name, "input")
        return spec

    def read_parameter(self, name: str, key: str, table: object) -> ParameterSpec:
        try:
            return parameters.parse_parameter_spec(key, table)
        except ValueError as error:
            self.raise_error(str(error), name, key, within="parameters")

    def raise_error(self, message: str, name: str = "", key: str = "", *, within: str = "") -> NoReturn:
        raise CatalogError(
            f"{self.file}, line {self.find_line((name, within) if within else (name,), key)}: {message}."
        )

    def find_line(self, section: tuple[str, ...], key: str) -> int:
        """Return the line of `key` in a table, or of the table's header, or of the header of the table around it."""
        here: tuple[str, ...] = ("",)
        start = 1
        for number, line in enumerate(self.lines, 1):
            if header := _parse_header(line):
                here = header
                if here in (section, section[:1]):
                    start = number
                if here == (*section, key):
                    return number
            elif here == section and re.match(rf"""\s*["']?{re.escape(key)}["']?\s*[=.]""", line) and key:
                return number
        return start


def _find_conflicts(spec: ModelSpec, table: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what does not go together in a model's table, each with the key that is at fault."""
    if "engine" not in table and not spec.task:
        yield 'a model needs task = "…" (a transformers task) or engine = "package.module:Class"', ""
    if spec.engine == TRANSFORMERS_ENGINE and not spec.model:
        yield 'a transformers task needs model = "…": a hub id, a folder or "package:NAME/FOLDER"', ""
    if others := [kind for kind in spec.default_for if kind not in spec.request_kinds]:
        answered = ", ".join(f'"{kind}"' for kind in spec.request_kinds) or "none of them"
        yield f'default_for has "{others[0]}", which the model does not answer: it answers {answered}', "default_for"
    if spec.max_length > spec.max_batch_tokens:
        bound = f"max_length ({spec.max_length}) must not be above max_batch_tokens ({spec.max_batch_tokens})"
        yield f"{bound}, or the longest item fits no batch", "max_length"
    if "idle_unload_s" in table and not spec.is_lazy:
        yield 'idle_unload_s is of models with load = "lazy": add that, or leave it out', "idle_unload_s"
    if tasks.find_task(spec.task).classifies:
        yield from _find_moderation_conflicts(spec.options)
    elif spec.engine == TRANSFORMERS_ENGINE and (of_others := spec.options.keys() & {HARMLESS_LABELS, FLAG_THRESHOLD}):
        yield f"options.{min(of_others)} is of models that classify texts: leave it out for {spec.task}", "options"


def _find_moderation_conflicts(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the options of a model that tells harmful texts."""
    labels, threshold = options.get(HARMLESS_LABELS, []), options.get(FLAG_THRESHOLD, 0)
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        yield f'options.{HARMLESS_LABELS} must be a list of labels such as ["neutral"], not {labels!r}', "options"
    if not is_of_type(threshold, "number") or not 0 <= threshold <= 1:
        yield f"options.{FLAG_THRESHOLD} must be a number from 0 to 1, not {threshold!r}", "options"
    if FLAG_THRESHOLD in options and HARMLESS_LABELS not in options:
        yield f"options.{FLAG_THRESHOLD} needs options.{HARMLESS_LABELS}, such as [] if no label is harmless", "options"


def _find_backend_conflicts(spec: ModelSpec, table: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield where backend, precision, dtype and task do not go together, each with the key that is at fault."""
    if spec.backend != TORCH:
        if "dtype" in table:
            yield f'dtype is of torch: with backend = "{spec.backend}" say precision = "…"', "dtype"
        if spec.engine == TRANSFORMERS_ENGINE and spec.task not in (known := tasks.list_backend_tasks()):
            yield f'backend = "{spec.backend}" computes {", ".join(known)}: leave it out for {spec.task}', "backend"
        return
    if spec.precision == "int8":
        yield 'torch computes in float32 and bfloat16: for int8 add backend = "openvino"', "precision"
    if spec.precision and "dtype" in table:
        yield "precision and dtype say the same of torch: leave one of them out", "dtype"
    if "tolerance" in table and spec.precision != "bfloat16":
        cure = 'add precision = "bfloat16" or backend = "openvino"'
        yield f"tolerance is of what is compared with torch in float32: {cure}", "tolerance"


def _parse_header(line: str) -> tuple[str, ...]:
    """Return the names in the header of a table, as TOML reads them; an empty tuple if the line is no header."""
    if not re.match(r"\s*\[(?!\[)", line):
        return ()
    try:
        table: Any = tomllib.loads(line)
    except ValueError:
        return ()
    names: list[str] = []
    while table:
        ((name, table),) = table.items()
        names.append(name)
    return tuple(names)
