"""Which models this worker is to run: those of the models file that it was started for."""

import time
from collections.abc import Callable

from django.conf import settings

from inference.catalog import lookup
from inference.catalog.specs import digest_of
from inference.models import WAITING, Job
from inference.worker.asked import Asked
from inference.worker.replicas import Replicas

LINGER_S = settings.WORKER_SILENT_S  # a web process may take jobs until it has seen that their model is gone


class ServedModels:
    """Follows the file. A model that is gone from it is run until no job of it is left."""

    def __init__(self, replicas: Replicas, asked: Asked) -> None:
        self.replicas = replicas
        self.asked = asked
        self._followed = lookup.models()
        self._left_at: dict[str, float] = {}  # monotonic
        self._jobless: dict[str, float] = {}  # when those had left of which no job is left
        replicas.file_digest = digest_of(self._followed)

    def follow(self, is_idle: Callable[[str], bool]) -> None:
        """By the event loop. `is_idle`: whether this worker holds no job of a model."""
        replicas, models = self.replicas, lookup.models()
        if models is not self._followed:
            self._followed = models
            replicas.follow(self.asked.of(models))
            replicas.file_digest = digest_of(models)
            now = time.monotonic()
            self._left_at = {name: self._left_at.get(name, now) for name in replicas.leaving}
        for name in replicas.leaving & self._jobless.keys():
            if self._jobless[name] == self._left_at[name] and is_idle(name):  # it may have come back meanwhile
                replicas.release(name)

    def find_jobless(self) -> None:
        """By another thread, which may wait for the database."""
        before = time.monotonic() - LINGER_S
        left = {name: left_at for name, left_at in list(self._left_at.items()) if left_at < before}
        self._jobless = {
            name: left_at
            for name, left_at in left.items()
            if not Job.objects.filter(model=name, status__in=WAITING).exists()
        }
