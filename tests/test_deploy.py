"""The systemd units start what the supervisor starts."""

import re
import shlex
from pathlib import Path

from django.conf import settings
from django.test import SimpleTestCase

from tools.launcher import programs

DEPLOY = Path(settings.BASE_DIR) / "deploy"


def command_of(unit: str) -> list[str]:
    text = (DEPLOY / unit).read_text().replace("\\\n", " ")
    return shlex.split(re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)[0])


class TestUnits(SimpleTestCase):
    def test_the_web_server_is_started_as_by_make_run_with_more_processes(self) -> None:
        command = command_of("inference-web.service")
        processes = command.index("--workers")
        del command[processes : processes + 2]
        self.assertEqual(command[1:], list(programs.make_web_server(host="127.0.0.1", port=8000).command[1:]))

    def test_the_workers_are_started_as_by_make_run(self) -> None:
        for unit, program in (
            ("inference-worker.service", programs.make_worker()),
            ("inference-batches.service", programs.make_batch_runner()),
            ("inference-webhooks.service", programs.make_webhook_sender()),
        ):
            self.assertIn("\nEnvironment=LOG_LEVEL=INFO\nEnvironmentFile=", (DEPLOY / unit).read_text())
            command = [part.replace("%H", "%h").replace("${LOG_LEVEL}", "INFO") for part in command_of(unit)]
            self.assertEqual(command[1:], list(program.command[1:]), unit)

    def test_the_example_names_variables_that_the_settings_page_explains(self) -> None:
        names = re.findall(r"^([A-Z_]+)=", (DEPLOY / "inference.env.example").read_text(), re.MULTILINE)
        page = (DEPLOY.parent / "docs" / "reference" / "settings.md").read_text()
        for name in set(names) - {"HF_HOME"}:
            self.assertIn(f"`{name}`", page)

    def test_what_a_worker_without_privileges_cannot_make_of_a_gpu_is_made_before_it(self) -> None:
        unit = (DEPLOY / "inference-worker.service").read_text()
        self.assertLess(unit.index("\nExecStartPre=+-/usr/bin/nvidia-modprobe -u -c=0\n"), unit.index("\nExecStart="))
        self.assertIn("\nNoNewPrivileges=yes\n", unit)

    def test_the_web_server_is_reloaded_without_an_end(self) -> None:
        self.assertIn("\nExecReload=/bin/kill -HUP $MAINPID\n", (DEPLOY / "inference-web.service").read_text())
