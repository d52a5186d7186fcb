"""Settings of a service with a bug in each of its programs, that raises with what it was given."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from django.apps import AppConfig

from project.settings import *  # noqa: F403
from project.settings import INSTALLED_APPS as THEIRS

IN_WEB, IN_WORKER, IN_WEBHOOKS = BUGS = "bug-in-web", "bug-in-worker", "bug-in-sender"
INSTALLED_APPS = [*THEIRS, "tests.e2e.buggy.Bugs"]


class Bugs(AppConfig):
    name, label = "tests.e2e", "bugs"

    def ready(self) -> None:
        from inference.catalog import request_validation
        from inference.webhooks import delivery
        from inference.worker.child import outcome_builder

        add(IN_WEB, request_validation, "validate_inputs", lambda given: given[1])
        add(IN_WORKER, outcome_builder, "estimate_size_in_numbers", lambda given: given[0])
        add(IN_WEBHOOKS, delivery, "make_webhook_body", lambda given: given[0].inputs)


def add(bug: str, module: ModuleType, name: str, of: Callable[[Any], object]) -> None:
    """To a function of the module, told by its arguments."""
    right = getattr(module, name)

    def wrong(*given: Any, **named: Any) -> Any:
        if bug in str(data := of(given)):
            raise KeyError(data)
        return right(*given, **named)

    setattr(module, name, wrong)
