"""What models.toml says, validated: one frozen `ModelSpec` a table.

A bad file is refused with a `CatalogError` that names the file, the line and what would be right.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NoReturn

from inference.broker import address
from inference.catalog import parameters, tasks
from inference.catalog.parameters import ParameterSpec, is_of_type

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
ENGINE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
TF32 = "tf32"  # weights in float32, products in fewer digits
DTYPES = ("auto", "float32", TF32, "bfloat16", "float16")
TORCH = "torch"
BACKENDS = (TORCH, "openvino")
PRECISIONS = ("float32", "bfloat16", "int8")
LOADS = ("eager", "lazy")
ON_GPU = {"max_batch_size": 512, "max_batch_tokens": 32_768}  # where a model's table sets no other
BUILT_IN = "inference.engines."
TRANSFORMERS_ENGINE = "inference.engines.pipeline.engine:PipelineEngine"
MAX_BYTES = 2**24
# What an engine may read when it is loaded. A change of anything else needs no weights to be loaded.
LOADED_BY = (
    "name", "engine", "task", "model", "revision", "backend", "precision", "tolerance", "dtype", "max_batch_tokens",
    "max_length", "options",
)  # fmt: skip


class CatalogError(Exception):
    """The catalog cannot be used; the message says where it is wrong and what would be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One servable model."""

    name: str  # in URLs, and of its queue
    engine: str = TRANSFORMERS_ENGINE  # "package.module:Class" or a function predict(inputs, parameters)
    task: str = ""  # a transformers task
    model: str = ""  # hub id, folder, or "package:NAME/FOLDER"
    revision: str = ""  # pinned for hub ids
    backend: str = "torch"  # what computes it
    precision: str = ""  # in which it is computed: of torch as `dtype` says, else float32
    tolerance: float = 0.0  # how far answers may be from those of torch in float32; 0: by the precision
    dtype: str = "auto"  # of the weights in torch
    max_batch_size: int = 32  # items
    max_batch_tokens: int = 8192  # with their padding
    max_length: int = 0  # tokens of one item: encoders cut there, generation refuses; 0: the model's own
    max_wait_ms: float = 0.0
    time_limit_s: float = 60.0  # of one batch
    max_queued: int = 1000  # admission limit
    load: str = "eager"  # as a worker starts, or "lazy": at its first job, and by turns where memory is scarce
    idle_unload_s: float = 300.0  # without work for so long a lazy model is unloaded
    input: ParameterSpec | None = None  # what an engine of one's own takes
    parameters: Mapping[str, ParameterSpec] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)  # handed to the engine as they are
    stated: frozenset[str] = frozenset()  # the keys of `ON_GPU` that its table has
    digest: str = field(init=False, repr=False, compare=False)  # of the whole entry
    load_digest: str = field(init=False, repr=False, compare=False)  # of what is loaded for it

    def __post_init__(self) -> None:
        values = {key: getattr(self, key) for key in keys()} | {"name": self.name}
        stated = sorted(self.stated)
        object.__setattr__(self, "digest", _digest(values | {"stated": stated}))
        loaded = {key: values[key] for key in LOADED_BY} | {"stated": [key for key in stated if key in LOADED_BY]}
        object.__setattr__(self, "load_digest", _digest(loaded))

    @property
    def is_built_in(self) -> bool:
        """Whether its engine is one of this project's."""
        return self.engine.startswith(BUILT_IN)

    @property
    def queue(self) -> str:
        return address.queue_of(self.name)

    @property
    def torch_dtype(self) -> str:
        """In which torch holds the weights: what another backend computes with is made of float32."""
        asked = (self.precision or self.dtype) if self.backend == TORCH else "float32"
        return "float32" if asked == TF32 else asked

    @property
    def is_lazy(self) -> bool:
        return self.load == "lazy"

    def on_gpu(self) -> ModelSpec:
        """The same entry, with the limits of a GPU where its table sets none: 32 short texts leave one idle."""
        if tasks.of(self.task).takes_files:
            return self
        spec = replace(self, **{key: most for key, most in ON_GPU.items() if key not in self.stated})  # type: ignore[arg-type]
        for name in ("digest", "load_digest"):
            object.__setattr__(spec, name, getattr(self, name))
        return spec


Catalog = Mapping[str, ModelSpec]


def keys() -> list[str]:
    """What a table may say."""
    return [spec.name for spec in fields(ModelSpec) if spec.init and spec.name not in ("name", "stated")]


def digest_of(catalog: Catalog) -> str:
    """Equal for catalogs that say the same, in whichever words and order."""
    return _digest(sorted(spec.digest for spec in catalog.values()))


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=_plain).encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    return asdict(value) if isinstance(value, ParameterSpec) else str(value)  # such as TOML's dates


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


def load(path: Path) -> Catalog:
    """Read and validate the file at `path`. Raises `CatalogError`."""
    return parse(read(path), str(path))


def read(path: Path) -> str:
    """Raises `CatalogError`."""
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
        return content.decode("utf-8-sig")  # some editors begin a file with a mark
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise CatalogError(f"{path}, line {line}: not UTF-8: save the file as UTF-8.") from error


def parse(text: str, file: str = "models.toml") -> Catalog:
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also of a number of too many digits
        raise CatalogError(f"{file}: not valid TOML: {error}.") from error
    reader = _Reader(text, file)
    if not tables:
        raise CatalogError(f"{file}: no models. Add a table such as [sentiment] with task and model.")
    try:
        return {name: reader.model(name, table) for name, table in tables.items()}
    except (OverflowError, RecursionError) as error:
        raise CatalogError(f"{file}: a number is too large, or a table too deep: {error}.") from error


class _Reader:
    """Turns tables into specs; knows the text, so that an error can name a line."""

    def __init__(self, text: str, file: str) -> None:
        self.lines = text.splitlines()
        self.file = file

    def model(self, name: str, table: Any) -> ModelSpec:
        if not isinstance(table, dict):
            self.fail(f"{name} is not in a table; put it below one such as [sentiment]", "", name)
        if not NAME.fullmatch(name):
            self.fail(f"the name {name!r} must match {NAME.pattern}, since it is part of URLs", name)
        self.known_keys(name, table)
        values = {key: self.value(name, key, value) for key, value in table.items() if key not in PARSED}
        if "input" in table:
            values["input"] = self.input(name, table["input"])
        own = self.parameters(name, table.get("parameters", {}))
        common = {**tasks.of(values.get("task", "")).parameters, **tasks.OF_ENGINES.get(values.get("engine", ""), {})}
        known = {**common, **own}
        spec = ModelSpec(name=name, parameters=known, stated=frozenset(ON_GPU.keys() & table.keys()), **values)
        self.consistent(spec, table)
        self.computable(spec, table)
        return spec

    def known_keys(self, name: str, table: dict[str, Any]) -> None:
        known = keys()
        for key in table:
            if key not in known:
                close = difflib.get_close_matches(key, known, 1)
                hint = f"did you mean {close[0]}?" if close else f"known keys are {', '.join(known)}"
                self.fail(f"unknown key {key!r}; {hint}", name, key)

    def value(self, name: str, key: str, value: Any) -> Any:
        if key in _BOUNDS:
            low, high = _BOUNDS[key]
            whole = key not in _FRACTIONS
            if not is_of_type(value, "integer" if whole else "number") or not low <= value <= high:
                kind = "a whole number" if whole else "a number"
                self.fail(f"{key} must be {kind} from {low:g} to {high:g}, not {value!r}", name, key)
        elif key == "options":
            if not isinstance(value, dict):
                self.fail("options must be a table", name, key)
        elif not isinstance(value, str) or not value:
            self.fail(f"{key} must be a string in quotes, not {value!r}", name, key)
        if key in _CHOICES and value not in _CHOICES[key]:
            self.fail(f"{key} must be one of {', '.join(_CHOICES[key])}, not {value!r}", name, key)
        if key == "engine" and not ENGINE.fullmatch(value):
            self.fail(f'engine must look like "package.module:Class", not {value!r}', name, key)
        return value

    def consistent(self, spec: ModelSpec, table: dict[str, Any]) -> None:
        if "engine" not in table and not spec.task:
            self.fail('a model needs task = "…" (a transformers task) or engine = "package.module:Class"', spec.name)
        if spec.engine == TRANSFORMERS_ENGINE and not spec.model:
            self.fail('a transformers task needs model = "…": a hub id, a folder or "package:NAME/FOLDER"', spec.name)
        if spec.max_length > spec.max_batch_tokens:
            self.fail(
                f"max_length ({spec.max_length}) must not be above max_batch_tokens ({spec.max_batch_tokens}),"
                " or the longest item fits no batch", spec.name, "max_length",
            )  # fmt: skip
        if "idle_unload_s" in table and not spec.is_lazy:
            problem = 'idle_unload_s is of models with load = "lazy": add that, or leave it out'
            self.fail(problem, spec.name, "idle_unload_s")

    def computable(self, spec: ModelSpec, table: dict[str, Any]) -> None:
        """Whether backend, precision, dtype and task go together."""
        if spec.backend == TORCH:
            if spec.precision == "int8":
                problem = 'torch computes in float32 and bfloat16: for int8 add backend = "openvino"'
                self.fail(problem, spec.name, "precision")
            if spec.precision and "dtype" in table:
                self.fail("precision and dtype say the same of torch: leave one of them out", spec.name, "dtype")
            if "tolerance" in table:
                problem = 'tolerance is of a backend that is compared with torch: add backend = "openvino"'
                self.fail(problem, spec.name, "tolerance")
        else:
            if "dtype" in table:
                problem = f'dtype is of torch: with backend = "{spec.backend}" say precision = "…"'
                self.fail(problem, spec.name, "dtype")
            if spec.engine == TRANSFORMERS_ENGINE and spec.task not in (known := tasks.compiled()):
                problem = f'backend = "{spec.backend}" computes {", ".join(known)}: leave it out for {spec.task}'
                self.fail(problem, spec.name, "backend")

    def parameters(self, name: str, table: Any) -> dict[str, ParameterSpec]:
        if not isinstance(table, dict):
            self.fail('parameters must be a table of tables, such as top_k = { type = "integer" }', name, "parameters")
        return {key: self.parameter(name, key, value) for key, value in table.items()}

    def input(self, name: str, table: Any) -> ParameterSpec:
        try:
            spec = parameters.parse("input", table)
        except ValueError as error:
            self.fail(str(error).removeprefix("parameter "), name, "input")
        if spec.required or spec.default is not None:
            self.fail("an input is always required and has no default", name, "input")
        return spec

    def parameter(self, name: str, key: str, table: Any) -> ParameterSpec:
        try:
            return parameters.parse(key, table)
        except ValueError as error:
            self.fail(str(error), f"{name}.parameters", key)

    def fail(self, message: str, section: str = "", key: str = "") -> NoReturn:
        raise CatalogError(f"{self.file}, line {self.line(section, key)}: {message}.")

    def line(self, section: str, key: str) -> int:
        """The line of `key` in table `section`, or of the table's header."""
        header, here, start = section.partition(".")[0], "", 1
        for number, line in enumerate(self.lines, 1):
            if match := re.match(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(#.*)?$", line):
                here = match[1].replace('"', "").replace("'", "").replace(" ", "")
                if here == section or (here == header and section != header):
                    start = number
                if here == f"{section}.{key}":
                    return number
            elif here == section and re.match(rf"""\s*["']?{re.escape(key)}["']?\s*[=.]""", line) and key:
                return number
        return start


_spelt = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def parameters_digest(parameters: Mapping[str, Any]) -> str:
    """Equal for equal parameters: only jobs of one digest share a batch."""
    return _spelt(parameters) if parameters else ""
