"""The API keys that jobs came with. The API gives them out, which lies above: it says here which there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db.models import QuerySet

issued: Callable[[Any], QuerySet[Any]]  # those that a user may look at: rows with a `start` and a `name`
