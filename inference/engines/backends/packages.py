"""The packages that a backend needs besides torch.

It does not import torch, so that `manage.py check` may use it.
"""

import importlib.util

from inference.catalog.specs import TORCH, ModelSpec

REFUSED = "torch computes it in float32, and not"  # begins the note on a refused backend or precision


def find_problem(spec: ModelSpec) -> str:
    """Return the reason why the model cannot be computed as its table asks for; an empty text if it can."""
    if spec.backend == TORCH or importlib.util.find_spec(spec.backend):
        return ""
    return (
        f'backend = "{spec.backend}" needs the package {spec.backend}:'
        f" pip install --no-deps -r requirements-{spec.backend}.txt, on every host with a worker."
    )
