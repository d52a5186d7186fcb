"""The numeric type, the form and the device map of a model's weights, and the type of their products, by its table."""

from typing import Any

import torch
from torch import nn

from inference.catalog.specs import TF32, ModelSpec
from inference.engines.runtime.parity import SHORT_TYPES, TEN_BITS, TOLERANCE
from inference.errors import ModelUnavailable

QUANTIZATIONS = ("bitsandbytes-8bit", "bitsandbytes-4bit", "torchao-int8", "torchao-int4")
CURE = "pip install -r requirements-quantized.txt -c requirements.lock"


def make_loading_arguments(spec: ModelSpec, device: str) -> dict[str, Any]:
    """Return the arguments for `from_pretrained` and `pipeline` that a model's table asks for.

    They follow from its dtype, `options.device_map` and `options.quantization`. Without a `device_map`, a replica with
    several GPUs spreads the model over them. Raises `ModelUnavailable` if the quantization is unknown or a package is
    missing.
    """
    spread = spec.options.get("device_map", "auto" if device != "cpu" and torch.cuda.device_count() > 1 else None)
    found: dict[str, Any] = {"dtype": spec.weights_dtype}
    if spread is not None:
        _require_packages("accelerate")
        found["device_map"] = spread
    if "quantization" in spec.options:
        found["quantization_config"] = _make_quantization(spec.options["quantization"])
        found.setdefault("device_map", {"": device})
    return found


def _make_quantization(name: Any) -> Any:
    if name not in QUANTIZATIONS:
        raise ModelUnavailable(f"options.quantization must be one of {', '.join(QUANTIZATIONS)}, not {name!r}.")
    library, _, kind = name.partition("-")
    _require_packages("accelerate", library)
    if library == "bitsandbytes":
        from transformers import BitsAndBytesConfig

        return BitsAndBytesConfig(load_in_8bit=kind == "8bit", load_in_4bit=kind == "4bit")
    from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig
    from transformers import TorchAoConfig

    return TorchAoConfig({"int8": Int8WeightOnlyConfig, "int4": Int4WeightOnlyConfig}[kind]())


def _require_packages(*packages: str) -> None:
    from importlib.util import find_spec

    if missing := [name for name in packages if find_spec(name) is None]:
        raise ModelUnavailable(f"this needs the package {missing[0]}, on every host with a worker: {CURE}")


def configure_tf32(spec: ModelSpec, model: nn.Module) -> None:
    """Let `model` compute in TF32 if its table asks for that, for its own calls and those of no other model.

    Without that nothing is computed in TF32, convolutions included, for which torch would use it by default.
    """
    _set_tf32(is_allowed=False)
    if spec.dtype != TF32:
        return
    model.register_forward_pre_hook(lambda *_: _set_tf32(is_allowed=True))
    model.register_forward_hook(lambda *_: _set_tf32(is_allowed=False), always_call=True)


def _set_tf32(*, is_allowed: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = is_allowed


def find_tolerance(spec: ModelSpec, model: nn.Module) -> float:
    """Return how far two answers of `model` may be apart that differ in nothing but the order of sums.

    It cannot be read off the type of the answers: a model in bfloat16 answers with scores in float32 as it generates.
    Nor can it be read off the type of one weight: some models keep a few weights in float32.
    """
    types = {weight.dtype for weight in model.parameters() if weight.is_floating_point()}
    shorter = types - {torch.float32, torch.float64}
    if shorter - {torch.float16}:
        return SHORT_TYPES
    return TEN_BITS if shorter or spec.dtype == TF32 else TOLERANCE
