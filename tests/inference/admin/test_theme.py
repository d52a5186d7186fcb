"""How the operator's pages look: on every screen, in both schemes, from the keyboard, under their policy."""

from __future__ import annotations

import html
import re
import uuid
from pathlib import Path

from django.contrib.auth.models import Permission, User
from django.test import TestCase
from django.urls import reverse

from api.models import ApiKey, BatchStatus, FileBatch, FileState, StoredFile
from inference.admin.content_security_policy import POLICY
from inference.models import Act, ActKind, Job, Status, Webhook
from tests.api.test_file_batch_admin import make_batch, make_running_batch
from tests.browser import PHONE, WIDE
from tests.conditions import ago
from tests.inference.admin.pages import BrowserCase
from tests.inference.admin.test_fleet import entry, learnt
from tests.inference.test_admin import make_job, make_worker

LOOKS = Path(__file__).with_name("looks.js").read_text()


class PolicyTests(TestCase):
    def test_all_pages_of_operators_have_it_and_no_other_has(self) -> None:
        for path in ("/admin/", "/admin/login/", "/admin/inference/job/", "/admin/nothing/"):
            self.assertEqual(self.client.get(path).headers["Content-Security-Policy"], POLICY, path)
        self.assertNotIn("unsafe", POLICY)
        self.assertNotIn("Content-Security-Policy", self.client.get("/v1/docs").headers)


class PlacesTests(TestCase):
    def test_each_user_is_led_to_what_they_may_see(self) -> None:
        self.client.force_login(User.objects.create_user("clerk", is_staff=True))
        page = self.client.get("/admin/").content.decode()
        self.assertIn('<a href="/admin/" aria-current="page">Overview</a>', page)
        self.assertNotIn(reverse("admin:inference_job_changelist"), page)

    def test_no_link_leads_to_a_page_that_the_reader_may_not_see(self) -> None:
        clerk, owner = User.objects.create_user("clerk", is_staff=True), User.objects.create_user("owner")
        clerk.user_permissions.set(
            Permission.objects.filter(content_type__app_label__in=("inference", "api"), codename__startswith="view_")
        )
        worker = make_worker()
        job = make_job(owner=owner, worker=worker.pk, batch=uuid.uuid4())
        Webhook.objects.create(job=job, url="http://client.example/")
        act = Act.objects.create(kind=ActKind.CANCEL, newest=job.pk, counted=9, by=owner)
        self.client.force_login(clerk)
        for page in ("/admin/", *(reverse(f"admin:inference_{row._meta.model_name}_change", args=[row.pk])
                                  for row in (job, worker, act, job.webhook))):  # fmt: skip
            for url in set(re.findall(r'<a href="(/admin/[^"#]*)"', self.client.get(page).content.decode())):
                self.assertEqual(self.client.get(html.unescape(url)).status_code, 200, f"{url} on {page}")


class LookTests(BrowserCase):
    def setUp(self) -> None:
        super().setUp()
        self.log_in()
        owner = User.objects.get()
        worker = make_worker(
            name="celery@a-host-with-a-long-name.example.org",
            model_names=["embeddings"],
            devices=["cuda:0"],
            error="embeddings: " + "why not " * 30,
            replicas={"0": {"pid": 8, "device": "cuda:0", "models": {"embeddings": "no weights " * 20}}},
            catalog={"models": [entry(why="no weights " * 20)]},
            costs={"embeddings": learnt()},
        )
        now = ago()
        key = ApiKey.objects.issue_key(owner=owner, name="a key")[0]
        for status in Status:
            self.job = make_job(
                status=status,
                inputs="a word " * 300,
                output=[0.25] * 384,
                worker=worker.pk,
                batch=uuid.uuid4(),
                batch_size=3,
                error_code="crashed",
                error_detail="x" * 200,
                owner=owner,
                started_at=now,
                finished_at=now,
                key_start=key.start,
            )
        act = Act.objects.create(kind=ActKind.CANCEL, newest=self.job.pk, counted=9, done=3, left={"x " * 50: 1})
        file = StoredFile.objects.create(
            owner=owner, name="a-long-name-" * 9, purpose="batch", state=FileState.STORED, size=2**21
        )
        error = {"code": "invalid_json_line", "message": "not JSON " * 30, "param": None, "line": 17}
        refused = make_batch(owner=owner, input_file=file, status=BatchStatus.FAILED, errors=[error])
        running = make_running_batch(owner=owner, input_file=file, metadata={"a word " * 9: "a word " * 60})
        self.paths = [
            "/admin/", reverse("admin:inference_job_changelist"), reverse("admin:inference_worker_changelist"),
            reverse("admin:api_apikey_changelist"),
            reverse("admin:inference_job_change", args=[self.job.pk]),
            reverse("admin:inference_worker_change", args=[worker.pk]),
            reverse("admin:inference_job_history", args=[self.job.pk]),
            reverse("admin:api_apikey_change", args=[key.pk]), reverse("admin:api_apikey_add"),
            reverse("admin:api_apikey_delete", args=[key.pk]), reverse("admin:auth_user_change", args=[owner.pk]),
            reverse("admin:inference_pausedmodel_changelist"), reverse("admin:inference_job_batches"),
            reverse("admin:inference_pausedmodel_change", args=["embeddings"]),
            reverse("admin:inference_job_batch", args=[self.job.batch]),
            reverse("admin:password_change"), reverse("admin:inference_webhook_changelist"),
            reverse("admin:inference_act_changelist"), reverse("admin:inference_act_change", args=[act.pk]),
            reverse("admin:api_filebatch_changelist"), reverse("admin:api_filebatch_change", args=[running.pk]),
            reverse("admin:api_filebatch_change", args=[refused.pk]),
            reverse("admin:api_storedfile_changelist"), reverse("admin:api_storedfile_change", args=[file.pk]),
        ]  # fmt: skip

    def test_every_page_keeps_its_policy_and_can_be_read_on_every_screen(self) -> None:
        """A page's complaints fail the test in its end. On each screen it is loaded in one scheme, and goes over to the
        other."""
        for path in self.paths:
            for size, schemes in ((WIDE, ("light", "dark")), (PHONE, ("dark", "light"))):
                self.browser.show(size, schemes[0])
                self.open(path)
                for scheme in schemes:
                    with self.subTest(path, width=size[0], scheme=scheme):
                        self.browser.show(size, scheme)
                        self.browser.wait_for("!document.getAnimations().length")  # of colours that go over
                        self.assertEqual(self.value(f"{LOOKS}\nfaint()"), [])
                        self.assertEqual(self.value(f"{LOOKS}\nnameless()"), [])
                        if size == PHONE and "/auth/" not in path:
                            self.assertEqual(self.value(f"{LOOKS}\ntooWide()"), [])
                            self.assertEqual(self.value(f"{LOOKS}\noverlapping()"), [])

    def test_on_a_phone_a_screen_shows_many_jobs_and_their_pages_the_rest(self) -> None:
        for number in range(50):
            name = "a-model-with-a-long-name" if number % 2 else "embeddings"
            make_job(model=name, status=Status.FAILED, error_code="crashed", owner=User.objects.get())
        self.browser.show(PHONE)
        self.open(reverse("admin:inference_job_changelist"))
        self.assertEqual(self.value("document.querySelectorAll('#result_list tbody tr').length"), 50)
        self.assertLess(self.value("document.querySelector('#result_list').offsetHeight"), 50 * PHONE[1] / 8)
        shown = self.value("document.querySelector('#result_list tbody tr').innerText")
        for fact in ("a-model-with-a-long-name", "failed", "crashed", "operator"):
            self.assertIn(fact, shown)
        self.assertEqual(self.value(f"{LOOKS}\ntooWide()"), [])
        self.assertEqual(self.value(f"{LOOKS}\noverlapping()"), [])

    def test_of_several_pages_the_one_that_is_shown_stands_out(self) -> None:
        for _ in range(60):
            make_job()
        behind = "getComputedStyle(document.querySelector('.paginator {}')).backgroundColor"
        for scheme in ("light", "dark"):
            self.browser.show(WIDE, scheme)
            self.open(reverse("admin:inference_job_changelist"))
            self.assertEqual(self.value(f"{LOOKS}\nfaint()"), [])
            here, other = (
                self.value(behind.format(one)) for one in (":is(.this-page, [aria-current])", "a:not([aria-current])")
            )
            self.value(
                "{ const made = document.createElement('input'); made.type = 'submit'; document.body.append(made); }"
            )
            button = self.value("getComputedStyle(document.body.lastChild).backgroundColor")
            self.assertEqual((here == button, other == button), (True, False))

    def test_no_icon_lies_upon_its_message(self) -> None:
        self.open(reverse("admin:inference_act_changelist"))
        self.value("document.querySelector('main').innerHTML = '<ul class=messagelist><li>2 jobs</li></ul>'")
        names = ("backgroundPositionX", "backgroundSize", "paddingLeft")
        for level in ("success", "warning", "error"):
            self.value(f"document.querySelector('.messagelist li').className = '{level}'")
            style = "getComputedStyle(document.querySelector('.messagelist li'))"
            begins, width, text_begins = (self.value(f"parseFloat({style}.{name})") for name in names)
            self.assertLess(begins + width, text_begins, level)

    def test_what_cannot_be_undone_is_asked_for_once_more(self) -> None:
        waiting = Job.objects.get(status=Status.QUEUED, bulk=None)
        running = FileBatch.objects.get(status=BatchStatus.IN_PROGRESS)
        tick = "document.getElementById('action-toggle').click()"
        choose = "document.querySelector('.actions select').value = "
        for path, chosen, button in (
            (reverse("admin:inference_job_changelist"), f"{tick}; {choose} 'cancel_jobs'", ".actions button"),
            (reverse("admin:api_filebatch_changelist"), f"{tick}; {choose} 'cancel'", ".actions button"),
            (reverse("admin:api_apikey_changelist"), f"{tick}; {choose} 'revoke'", ".actions button"),
            (reverse("admin:inference_job_change", args=[waiting.pk]), "", ".steer button"),
            (reverse("admin:api_filebatch_change", args=[running.pk]), "", ".steer button"),
        ):
            with self.subTest(path):
                self.open(path)
                self.value("window.confirm = (text) => { window.asked = text; return false; }")
                self.value(chosen)
                self.value(f"document.querySelector('{button}').click()")
                self.assertRegex(self.value("window.asked"), r"^(Cancel|Revoke).*\? This cannot be undone\.$")
        waiting.refresh_from_db()
        running.refresh_from_db()
        self.assertEqual((waiting.status, running.status), (Status.QUEUED, BatchStatus.IN_PROGRESS))
        self.assertFalse(ApiKey.objects.exclude(revoked_at=None).exists())

    def test_the_head_of_a_page_is_one_line_on_a_laptop_and_two_on_a_phone(self) -> None:
        middle = (
            "Math.round((({top, bottom}) => top + bottom)(document.querySelector('%s').getBoundingClientRect()) / 8)"
        )
        for size, lines in (((1280, 900), 1), (PHONE, 2)):
            self.browser.show(size)
            self.open("/admin/")
            found = {self.value(middle % part) for part in ("#branding", "#places", "#user-tools")}
            self.assertEqual(len(found), lines)
            is_cut = "(({scrollWidth, clientWidth}) => scrollWidth > clientWidth)(document.querySelector('#places'))"
            self.assertEqual(self.value(is_cut), size == PHONE)

    def test_the_log_in_page(self) -> None:
        self.client.logout()
        self.browser.log_in(self.live_server_url, "nobody")
        for size, scheme in ((WIDE, "dark"), (PHONE, "light")):
            self.browser.show(size, scheme)
            self.open("/admin/login/")
            self.assertEqual(self.value(f"{LOOKS}\nfaint()"), [])

    def test_filters_open_and_close_from_the_keyboard(self) -> None:
        self.browser.show(WIDE)
        self.open(reverse("admin:inference_job_changelist"))
        self.value("document.querySelector('details.filter summary').focus()")
        self.browser.key("Enter")
        self.browser.wait_for("document.querySelector('details.filter').open")
        self.browser.key("Tab")
        self.assertEqual(self.value("document.activeElement.textContent"), "All")
        self.assertNotEqual(self.value("getComputedStyle(document.activeElement).outlineStyle"), "none")
        self.browser.key("Escape")
        self.browser.wait_for("!document.querySelector('details.filter').open")
        self.assertEqual(self.value("document.activeElement.tagName"), "SUMMARY")
        self.open(reverse("admin:inference_job_changelist") + "?status__exact=failed")
        self.assertEqual(self.value("document.querySelector('details.filter summary').innerText"), "Status: Failed")
