"""What a backend needs besides torch. Knows no torch, so that `manage.py check` may ask."""

import importlib.util

from inference.catalog.specs import TORCH, ModelSpec

REQUIREMENTS = {"openvino": "requirements-openvino.txt"}
REFUSED = "torch computes it in float32, and not"  # is said of a model whose answers are too far in any other way


def problem(spec: ModelSpec) -> str:
    """Why the model cannot be computed as it is asked for; nothing where it can."""
    if spec.backend == TORCH or importlib.util.find_spec(spec.backend):
        return ""
    return (
        f'backend = "{spec.backend}" needs the package {spec.backend}:'
        f" pip install --no-deps -r {REQUIREMENTS[spec.backend]}, on every host with a worker."
    )
