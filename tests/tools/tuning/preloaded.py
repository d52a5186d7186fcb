"""Import once what many replicas import, for processes that are forked; none looks through it for garbage."""

import gc

import transformers.pipelines

from tools.tuning import replica

__all__ = ["replica", "transformers"]

gc.freeze()
