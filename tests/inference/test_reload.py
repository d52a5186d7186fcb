"""What `manage.py reload` says without a worker that follows; with one: tests/e2e/test_reload.py."""

import io
from unittest.mock import patch

from django.core.management import CommandError, call_command
from django.test import TestCase

from inference.catalog import lookup, specs
from inference.models import Worker, WorkerState


class ReloadTests(TestCase):
    def reload(self, timeout: float = 0.0) -> str:
        output = io.StringIO()
        call_command("reload", timeout=timeout, stdout=output)
        return output.getvalue()

    def make(self, *, digest: str, runs: str = "") -> None:
        """`runs`: the digest of each entry, if it is another than the file's."""
        entries = [
            {"name": spec.name, "model": "", "revision": "", "digest": runs or spec.digest, "state": "ready", "why": ""}
            for spec in lookup.get_catalog().values()
        ]
        catalog = {"digest": digest, "problem": "", "models": entries}
        Worker.objects.create(name="w", pid=1, state=WorkerState.READY, catalog=catalog)

    def test_nothing_waits_for_nobody(self) -> None:
        with self.assertRaisesMessage(CommandError, "No worker runs."):
            self.reload()

    def test_a_worker_that_follows_another_file_is_named_when_the_time_is_over(self) -> None:
        self.make(digest="of another")
        with self.assertRaisesMessage(CommandError, "Not within 0 s: w has not taken over the file."):
            self.reload()

    def test_what_runs_already_is_said_at_once(self) -> None:
        self.make(digest=specs.digest_catalog(lookup.get_catalog()))
        self.assertEqual(
            self.reload().splitlines(),
            [
                "Nothing is left to change: the workers have read the file as it is now.",
                "embeddings: run as the file says, by 1 worker.",
            ],
        )

    def test_what_changes_is_known_to_the_web_processes_too_when_it_ends(self) -> None:
        self.make(digest=specs.digest_catalog(lookup.get_catalog()), runs="of before")
        with patch("inference.management.commands.reload.time.sleep") as slept:
            self.assertIn("changed: embeddings.", self.reload())
        self.assertGreater(sum(call.args[0] for call in slept.call_args_list), lookup.LOOK_S)
