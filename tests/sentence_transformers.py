"""The library sentence-transformers, beside which vectors and scores are compared.

requirements-models-test.txt installs it alone. SciPy and scikit-learn, which only its evaluations call, are not there:
nothing of them is called here, and a name of theirs is enough for the import.
"""

from __future__ import annotations

import functools
import sys
from typing import Any
from unittest.mock import MagicMock

ABSENT = ("scipy", "scipy.sparse", "scipy.stats", "sklearn", "sklearn.metrics")


@functools.cache
def library() -> Any:
    """Import the library, after transformers has looked for the packages that are absent."""
    import transformers.pipelines  # noqa: F401

    sys.modules |= {name: MagicMock(__path__=[]) for name in ABSENT}
    try:
        import sentence_transformers
        import sentence_transformers.base.modules
        import sentence_transformers.sentence_transformer.modules
    finally:
        for name in ABSENT:
            del sys.modules[name]
    return sentence_transformers
