"""The API keys that jobs came with.

The package `api`, a layer above this one, issues the keys. It sets `issued` here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db.models import QuerySet

issued: Callable[[Any], QuerySet[Any]]  # returns the keys that a user may look at: rows with a `start` and a `name`
