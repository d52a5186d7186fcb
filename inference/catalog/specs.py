"""The entries of the catalog: one frozen `ModelSpec` for each table of models.toml, which `reader` reads."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from inference.broker import address
from inference.catalog import tasks
from inference.catalog.parameters import ParameterSpec, is_value_allowed

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
TF32 = "tf32"  # weights in float32, products with fewer digits
TORCH = "torch"
BACKENDS = (TORCH, "openvino")
PRECISIONS = ("float32", "bfloat16", "int8")
# Kinds of requests that may name no model: the servers that they are for have one.
KINDS = ("embed", "predict", "rerank", "moderate")
# Options of a model that tells harmful texts: its labels that are not, and the score from which others flag a text.
HARMLESS_LABELS, FLAG_THRESHOLD = "harmless_labels", "flag_threshold"
ON_GPU = {"max_batch_size": 512, "max_batch_tokens": 32_768}  # limits on a GPU where a model's table sets no others
BUILT_IN = "inference.engines."
TRANSFORMERS_ENGINE = "inference.engines.pipeline.engine:PipelineEngine"
# Fields that an engine may read when it is loaded. A change of any other field needs no weights to be loaded again.
LOADED_BY = (
    "name", "engine", "task", "model", "revision", "backend", "precision", "tolerance", "dtype", "max_batch_tokens",
    "max_length", "options",
)  # fmt: skip


class CatalogError(Exception):
    """The catalog cannot be used; the message has where it is wrong and what would be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One entry of the catalog: a model that can be served."""

    name: str  # part of URLs, and of the queue's name
    engine: str = TRANSFORMERS_ENGINE  # "package.module:Class" or a function predict(inputs, parameters)
    task: str = ""  # a transformers task
    model: str = ""  # hub id, folder, or "package:NAME/FOLDER"
    revision: str = ""  # pinned for hub ids
    backend: str = "torch"  # the library that computes the model
    precision: str = ""  # in which it is computed; empty: with torch as `dtype` has it, else float32
    tolerance: float = 0.0  # how far answers may be from those of torch in float32; 0: depends on the precision
    dtype: str = "auto"  # of the weights in torch
    max_batch_size: int = 32  # items
    max_batch_tokens: int = 8192  # tokens of a batch, with their padding
    max_length: int = 0  # tokens of one item: encoders cut there, generation refuses; 0: the model's own
    max_wait_ms: float = 0.0
    time_limit_s: float = 60.0  # of one batch
    max_queued: int = 1000  # admission limit
    load: str = "eager"  # when a worker starts, or "lazy": with its first job, and in turns where memory is scarce
    idle_unload_s: float = 300.0  # a lazy model is unloaded after so long without work
    input: ParameterSpec | None = None  # what an engine of the user's own takes
    parameters: Mapping[str, ParameterSpec] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)  # handed to the engine as they are
    default_for: tuple[str, ...] = ()  # of KINDS: it answers requests of these kinds that name no model
    stated: frozenset[str] = frozenset()  # the keys of `ON_GPU` that its table has
    digest: str = field(init=False, repr=False, compare=False)  # of the whole entry
    load_digest: str = field(init=False, repr=False, compare=False)  # of the fields in LOADED_BY

    def __post_init__(self) -> None:
        values = {key: getattr(self, key) for key in list_table_keys()} | {"name": self.name}
        stated = sorted(self.stated)
        object.__setattr__(self, "digest", _digest_value(values | {"stated": stated}))
        loaded = {key: values[key] for key in LOADED_BY} | {"stated": [key for key in stated if key in LOADED_BY]}
        object.__setattr__(self, "load_digest", _digest_value(loaded))

    @property
    def is_built_in(self) -> bool:
        """True if its engine is one of this project's."""
        return self.engine.startswith(BUILT_IN)

    @property
    def embeds(self) -> bool:
        """True if it answers a text with one vector, in the form from which answers for OpenAI's clients are made."""
        requested = {"details": True, "dimensions": 1, "encoding_format": "base64"}
        return all(
            name in self.parameters and is_value_allowed(self.parameters[name], requested[name]) for name in requested
        )

    @property
    def request_kinds(self) -> tuple[str, ...]:
        """The kinds of requests that it answers."""
        task = tasks.find_task(self.task)
        moderates = task.classifies and HARMLESS_LABELS in self.options
        answers = {"embed": self.embeds, "predict": task.classifies, "rerank": task.ranks, "moderate": moderates}
        return tuple(kind for kind in KINDS if answers[kind])

    @property
    def queue(self) -> str:
        return address.get_queue_name(self.name)

    @property
    def weights_dtype(self) -> str:
        """The dtype in which torch holds the weights; those of another backend are made from float32."""
        dtype = (self.precision or self.dtype) if self.backend == TORCH else "float32"
        return "float32" if dtype == TF32 else dtype

    @property
    def is_lazy(self) -> bool:
        return self.load == "lazy"

    def with_gpu_limits(self) -> ModelSpec:
        """Return the same entry, with the limits of a GPU where its table sets none: 32 short texts leave it idle."""
        if tasks.find_task(self.task).takes_files:
            return self
        spec = replace(self, **{key: most for key, most in ON_GPU.items() if key not in self.stated})  # type: ignore[arg-type]  # by names of fields
        for name in ("digest", "load_digest"):
            object.__setattr__(spec, name, getattr(self, name))
        return spec


Catalog = Mapping[str, ModelSpec]


def list_table_keys() -> list[str]:
    """Return the keys that a table may have."""
    return [spec.name for spec in fields(ModelSpec) if spec.init and spec.name not in ("name", "stated")]


def digest_catalog(catalog: Catalog) -> str:
    """Return a digest that is equal for catalogs with the same entries, in whichever spelling and order."""
    return _digest_value(sorted(spec.digest for spec in catalog.values()))


def _digest_value(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=_convert_to_plain).encode()).hexdigest()[:16]


def _convert_to_plain(value: object) -> Any:
    return asdict(value) if isinstance(value, ParameterSpec) else str(value)  # such as TOML's dates


_encode_sorted = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def digest_parameters(parameters: Mapping[str, Any]) -> str:
    """Return a digest of parameters, by which only equal ones share a batch; no text if there are none.

    Parameters can be as long as an input, and messages are to be short.
    """
    return hashlib.sha256(_encode_sorted(parameters).encode()).hexdigest()[:32] if parameters else ""
