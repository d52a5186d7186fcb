"""The command `manage.py reload`, for an edited models.toml: it waits until every living worker runs it."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from inference.catalog import lookup, reader
from inference.catalog.specs import Catalog, CatalogError
from inference.models import Worker
from inference.status import worker_catalogs, workers
from inference.telemetry.plurals import format_count

LOOK_EVERY_S = 0.5
WEB_S = lookup.LOOK_S + 3 * lookup.SETTLE_S  # seconds until this host's web processes, which have no rows, use the file
GRACE_S = 3 * lookup.LOOK_S  # seconds in which a worker finds the file as it is now
FOLLOWED = "Nothing is left to change: the workers have read the file as it is now."


class Command(BaseCommand):
    help = "Check models.toml, say what it changes, and wait until every living worker runs it: nothing is restarted."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--timeout", type=float, default=600.0, help="seconds to wait for the workers, default 600")

    def handle(self, *args: Any, timeout: float, **options: Any) -> None:
        try:
            wanted = reader.load_catalog(settings.MODELS_FILE)
        except CatalogError as error:
            raise CommandError(f"Nothing changes. {error}") from error
        living = list(workers.select_living_workers())
        if not living:
            raise CommandError("No worker runs. One that is started reads the file by itself.")
        known_at = time.monotonic() + WEB_S
        found = worker_catalogs.find_catalog_changes(living, wanted)
        self.stdout.write(f"{found}." if found else FOLLOWED)
        self.known = {worker.pk: worker_catalogs.count_failed_loads(worker) for worker in living}
        self._wait_for_workers(wanted, timeout)
        if found:
            time.sleep(max(0.0, known_at - time.monotonic()))
        if missing := worker_catalogs.find_unselected_models(workers.select_living_workers(), wanted):
            raise CommandError(f"No living worker was started for {', '.join(missing)}: see its option --models.")
        self.stdout.write(
            f"{', '.join(wanted)}: run as the file says,"
            f" by {format_count(workers.select_living_workers().count(), 'worker')}."
        )

    def _wait_for_workers(self, wanted: Catalog, timeout_s: float) -> None:
        """Wait for the workers, which look at the file by themselves and write on their rows how far they are.

        Raises `CommandError` after `timeout_s`.
        """
        begun_s, said = time.monotonic(), ""
        while waited_for := self._check_progress(wanted, time.monotonic() - begun_s):
            if (now := "; ".join(waited_for)) != said:
                said = now
                self.stdout.write(f"{now} …")
            if time.monotonic() - begun_s > timeout_s:
                raise CommandError(f"Not within {timeout_s:g} s: {now}. What ran before goes on.")
            time.sleep(LOOK_EVERY_S)

    def _check_progress(self, wanted: Catalog, waited_s: float) -> list[str]:
        """Return what is still to happen.

        Raises `CommandError` when it will not happen.
        """
        living: list[Worker] = list(workers.select_living_workers())
        waited_for = [what for worker in living if (what := worker_catalogs.explain_pending_reload(worker, wanted))]
        # A cause may have been removed: what failed before this command began has another try.
        problems = [
            problem
            for worker in living
            for problem in worker_catalogs.explain_failed_reload(worker, wanted, self.known.get(worker.pk, {}))
        ]
        if problems and waited_s > GRACE_S:
            raise CommandError("\n".join([*problems, "What ran before goes on."]))
        return waited_for
