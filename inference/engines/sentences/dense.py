"""The Dense modules of sentence-transformers: a linear layer over a sentence's vector, and an activation."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from inference.errors import ModelUnavailable

WEIGHTS = "model.safetensors"
ACTIVATIONS: Mapping[str, type[nn.Module]] = {
    kind.__name__: kind
    for kind in (nn.ELU, nn.GELU, nn.Identity, nn.LeakyReLU, nn.Mish, nn.ReLU, nn.SELU, nn.Sigmoid, nn.SiLU, nn.Tanh)
}
MOST_FEATURES = 1_000_000
FLAGS = {"bias": True, "use_residual": False}
# If these fields are there, they must have one of these values: the module reads a sentence's vector and replaces it.
PLACES: Mapping[str, tuple[Any, ...]] = {
    "module_input_name": ("sentence_embedding",),
    "module_output_name": ("sentence_embedding", None),
}
FIELDS = {"in_features", "out_features", "activation_function", *FLAGS, *PLACES}


class Dense(nn.Module):  # type: ignore[misc]  # torch has no types here
    """A module that computes activation(linear(x)), and adds x, or its projection, if it is a residual one."""

    def __init__(self, linear: nn.Linear, activation: nn.Module, residual: nn.Module | None) -> None:
        super().__init__()
        self.linear, self.activation, self.residual = linear, activation, residual

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Map (texts, in_features) to (texts, out_features)."""
        found: torch.Tensor = self.activation(self.linear(vectors))
        return found if self.residual is None else found + self.residual(vectors)


def load_dense(folder: Path, saved: Mapping[str, Any]) -> Dense:
    """Return the module that is saved in `folder`, whose configuration is `saved`.

    Raises `ModelUnavailable` if the configuration is not understood, or the weights are missing or do not fit it.
    """
    file = f"{folder.name}/config.json"
    read, written = saved.get("in_features"), saved.get("out_features")
    if not (type(read) is type(written) is int and 0 < read <= MOST_FEATURES and 0 < written <= MOST_FEATURES):
        sizes = f"whole numbers from 1 to {MOST_FEATURES}"
        raise ModelUnavailable(f"{file} must have in_features and out_features, {sizes}.")
    flags = {name: saved.get(name, default) for name, default in FLAGS.items()}
    wrong = [name for name, on in flags.items() if type(on) is not bool]
    wrong += [name for name, allowed in PLACES.items() if name in saved and saved[name] not in allowed]
    wrong += sorted(saved.keys() - FIELDS)
    if wrong:
        problem = f"{wrong[0]} = {repr(saved[wrong[0]])[:100]} is not understood. Write an engine class"
        raise ModelUnavailable(f"{file}: {problem}, see docs/guide/models.md.")
    activation = _make_activation(file, saved.get("activation_function", "torch.nn.Tanh"))
    with torch.device("meta"):  # No weights take memory before those read from the file.
        linear = nn.Linear(read, written, bias=flags["bias"])
        module = Dense(linear, activation, _make_residual(read, written) if flags["use_residual"] else None)
    try:
        weights = {name: part.float() for name, part in load_file(folder / WEIGHTS).items()}
        module.load_state_dict(weights, assign=True)
    except FileNotFoundError:
        raise ModelUnavailable(
            f"{folder.name}/{WEIGHTS} is missing: save the model again, with a release of sentence-transformers that"
            " writes it."
        ) from None
    except (RuntimeError, SafetensorError) as error:
        raise ModelUnavailable(f"{folder.name}/{WEIGHTS} does not fit its config.json: {error}") from None
    module.eval().requires_grad_(requires_grad=False)
    return module


def _make_activation(file: str, name: object) -> nn.Module:
    package, _, kind = str(name).rpartition(".")
    if kind not in ACTIVATIONS or not f"{package}.".startswith("torch.nn."):
        known = ", ".join(f"torch.nn.{kind}" for kind in ACTIVATIONS)
        raise ModelUnavailable(f"{file}: activation_function {str(name)[:100]!r} is not known; known are {known}.")
    return ACTIVATIONS[kind]()


def _make_residual(read: int, written: int) -> nn.Module:
    return nn.Identity() if read == written else nn.Linear(read, written, bias=False)
