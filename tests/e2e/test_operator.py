"""What operators do, in a real browser on the real service: who may what, a load that runs, a job that failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group

from inference.models import PausedModel, Status, Worker
from tests.browser import Browser
from tests.conditions import eventually
from tests.e2e.case import StackCase
from tests.faults.load import Load
from tests.inference.admin.pages import needed
from tests.ports import HOST

MODELS = """
[echo]
engine = "tests.faults.engines:Upset"
max_batch_size = 8
options = { fixed_ms = 20 }

[other]
engine = "tests.echo:EchoEngine"
"""
PASSWORD = "a password for tests"
PLACES = {  # what the bar on top leads to
    "may look": {"Overview", "Jobs", "Batches", "File batches", "Files", "Models", "Workers", "Webhooks", "Actions"},
    "may administer": {"API keys", "Users"},
}
JOBS, WORKERS = "/admin/inference/job/", "/admin/inference/worker/"
WAITING = 60  # more than a page lists


@needed
class OperatorTests(StackCase):
    """Each test ends with a console without errors, and nothing asked of another host or against the page's policy."""

    options = {"models": MODELS, "workers": 2, "replicas": 1, "environment": {"WORKER_HEARTBEAT_S": "0.2"}}
    browser: Browser
    url: str

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.browser = cls.enterClassContext(Browser())
        cls.url = f"http://{HOST}:{cls.stack.port}"
        users = get_user_model().objects.db_manager(cls.stack.alias)
        for group in Group.objects.using(cls.stack.alias):
            user = users.create_user(group.name.replace(" ", "-"), password=PASSWORD, is_staff=True)
            user.groups.add(group)

    def tearDown(self) -> None:
        self.browser.open("about:blank")
        self.assertEqual(self.browser.complaints, [])
        own = (self.url, "about:", "data:")
        self.assertEqual([url for url in self.browser.requests if not url.startswith(own)], [])

    def log_in(self, group: str) -> None:
        self.browser.log_out()
        self.open("/admin/")
        self.browser.fill(username=group.replace(" ", "-"), password=PASSWORD)
        self.browser.click("[type=submit]")

    def open(self, path: str) -> None:
        self.browser.open(self.url + path)

    def value(self, script: str) -> Any:
        return self.browser.evaluate(script)

    def text(self, selector: str = "body") -> str:
        return str(self.value(f"document.querySelector('{selector}').innerText"))

    def shows(self, selector: str) -> bool:
        """Once the page is loaded again."""
        self.browser.open(self.value("location.href"))
        return bool(self.value(f"!!document.querySelector('{selector}')"))

    def is_held_back_by_both(self) -> bool:
        return self.shows("#content-main") and self.text("#content-main").count("held back") == 2

    def test_each_group_is_shown_what_it_may_see_and_do(self) -> None:
        job_id = self.stack.submit("a")
        worker = self.stack.workers.all()[0]
        pages = (
            f"{JOBS}{job_id}/change/",
            f"{WORKERS}{worker.pk}/change/",
            "/admin/inference/pausedmodel/echo/change/",
        )
        for group in ("may look", "may act", "may administer"):
            with self.subTest(group):
                self.log_in(group)
                places = set(self.value("Array.from(document.querySelectorAll('#places a'), (a) => a.innerText)"))
                administers = group == "may administer"
                self.assertEqual(places & PLACES["may look"], PLACES["may look"])
                self.assertEqual(places & PLACES["may administer"], PLACES["may administer"] if administers else set())
                for page in pages:
                    self.open(page)
                    buttons = self.value("document.querySelectorAll('button[name=action]').length")
                    self.assertEqual(buttons > 0, group != "may look", page)

    def test_a_load_that_runs_is_watched_without_loading_the_page_again(self) -> None:
        self.log_in("may look")
        self.value("window.isTheSame = true")
        number = "parseInt(document.getElementById('charts-ended').innerText)"
        with Load(self.stack.port, lambda: "text", per_s=40):
            self.browser.wait_for(f"{number} > 20")
            before = self.value(number)
            self.browser.wait_for(f"{number} > {before}")
        self.assertTrue(self.value("window.isTheSame"))
        self.assertIn("echo", self.text("#now"))

    def test_a_failed_job_is_found_by_its_error_and_succeeds_when_it_is_run_again_alone(self) -> None:
        upset = Path(self.stack.folder) / "upset"
        upset.touch()
        self.stack.finished(*(self.stack.submit(text) for text in ("good", "bad one", "good too")))
        self.log_in("may act")
        self.browser.wait_for("!!document.querySelector('#charts-ended .badge-failed')")
        self.browser.click("#charts-ended .badge-failed", "engine_error")
        self.assertEqual(self.value("document.querySelectorAll('#result_list tbody tr').length"), 1)
        self.browser.click("#result_list tbody a")
        story = self.text(".story")
        for part in ("Accepted", "Claimed", "engine_error", "upset by what it reads"):
            self.assertIn(part, story)
        self.assertIn("bad one", self.text(".input"))
        upset.unlink()
        self.browser.click("button", "Retry alone")
        self.browser.click(".messagelist a")
        self.browser.wait_for("!!document.querySelector('#story .badge-succeeded')")
        self.assertIn("bad one", self.text(".output"))

    def test_all_that_match_are_cancelled(self) -> None:
        self.log_in("may act")
        self.browser.click("#places a", "Models")
        self.browser.click("#content a", "other")
        self.browser.click("button", "Pause")
        self.assertIn("by may-act", self.text("#content-main"))
        eventually(self.is_held_back_by_both, "both workers heed it", every_s=0.5)
        waiting = [self.stack.submit(f"text {number}", model="other") for number in range(WAITING)]
        kept = self.stack.submit("another model's")
        self.open(f"{JOBS}?model=other&status__exact=queued")
        self.value("document.getElementById('action-toggle').click()")
        self.value("document.querySelector('.actions .question a').click()")
        self.value("document.querySelector('[name=action]').value = 'cancel_jobs'")
        self.browser.click(".actions button")
        self.assertIn(f"cancel {WAITING} jobs?", self.text("h1").lower())
        self.browser.click(".steer button", f"{WAITING} jobs")
        self.browser.wait_for("!!document.querySelector('.badge-done')")  # the page renews itself
        self.assertIn(f"{WAITING} of {WAITING}", self.text())
        self.assertEqual({job.status for job in self.stack.finished(*waiting)}, {Status.CANCELLED})
        self.assertEqual(self.stack.finished(kept)[0].status, Status.SUCCEEDED)
        self.open("/admin/inference/pausedmodel/other/change/")
        self.browser.click("button", "Resume")
        self.assertFalse(PausedModel.objects.using(self.stack.alias).exists())

    def test_a_worker_is_drained_and_resumed(self) -> None:
        drained, other = self.stack.workers.order_by("name")
        self.log_in("may act")
        self.browser.click("#places a", "Workers")
        self.browser.click("#result_list a", drained.name)
        self.browser.click("button", "Drain")
        eventually(lambda: self.shows(".badge-drained"), "it is drained", every_s=0.5)
        done = self.stack.finished(*(self.stack.submit(f"text {number}") for number in range(20)))
        self.assertEqual({job.worker for job in done}, {other.pk})
        self.open("/admin/")
        self.assertIn(f"{drained.name} is drained", self.text(".attention"))
        self.browser.click(".attention a")
        self.browser.click("button", "Resume")
        eventually(lambda: self.shows(".badge-ready"), "it serves again", every_s=0.5)
        self.assertFalse(Worker.objects.using(self.stack.alias).filter(is_to_rest=True).exists())
