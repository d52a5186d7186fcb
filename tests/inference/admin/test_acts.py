"""What is done with all jobs that a filter finds: counted, confirmed, left to the workers, noted."""

from __future__ import annotations

import html
import re
import uuid
from unittest.mock import patch
from urllib.parse import urlencode

from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.http import QueryDict
from django.urls import reverse

from api.models import ApiKey
from inference.admin import job_lookups
from inference.admin.pages.acts import list_selection_facts
from inference.fields.ids import make_row_id
from inference.models import Act, ActKind, ActState, Bulk, Job, Status
from inference.upkeep import acts
from inference.values.priority import Priority
from tests.inference.test_admin import JOBS, MARKUP, AdminCase, make_job, make_worker

BEGIN = reverse("admin:inference_job_act")
PLAN = re.compile(r'name="plan" value="([^"]+)"')


class ActOnAllTests(AdminCase):
    def request_act(self, action: str, **query: str) -> str:
        """As "select all" of every page does."""
        data = {"action": action, "select_across": "1", "_selected_action": [Job.objects.all()[0].pk]}
        return self.client.post(f"{JOBS}?{urlencode(query)}", data, follow=True).content.decode()

    def plan(self, page: str) -> str:
        found = PLAN.search(page)
        assert found, page[:2000]
        return html.unescape(found[1])

    def test_they_are_counted_then_confirmed_then_done_by_the_workers(self) -> None:
        make_job(status=Status.SUCCEEDED)
        Job.objects.bulk_create(Job(model="embeddings", inputs="x") for _ in range(120))
        page = self.request_act("cancel_jobs", status__exact="queued")
        self.assertIn("Cancel 120 jobs", page)
        self.assertFalse(Act.objects.exists())
        shown = self.client.post(BEGIN, {"plan": self.plan(page)}, follow=True).content.decode()
        act = Act.objects.get()
        self.assertEqual((act.kind, act.counted, act.by, act.state), ("cancel", 120, User.objects.get(), "waiting"))
        self.assertIn("No worker is alive", shown)
        self.assertEqual(LogEntry.objects.get().object_id, str(act.pk))
        acts.continue_oldest_act()
        self.assertEqual(Job.objects.filter(status=Status.CANCELLED).count(), 120)
        shown = self.text(reverse("admin:inference_act_change", args=[act.pk]))
        self.assertIn("120 of 120", shown)
        self.assertNotIn("http-equiv", shown)
        self.assertIn("status: queued", self.text(reverse("admin:inference_act_changelist")))

    def test_each_filter_finds_for_the_act_what_the_list_shows(self) -> None:
        batch, bulk, worker = uuid.uuid4(), Bulk.objects.create(model="x", total=1), make_worker()
        key = ApiKey.objects.issue_key(owner=User.objects.get(), name="nightly")[0]
        whole = make_job(parts=1)
        part = make_job(whole=whole.pk, place=0, worker=worker.pk, batch=batch)
        job = make_job(
            status=Status.FAILED,
            error_code="crashed",
            priority=Priority.HIGH,
            worker=worker.pk,
            batch=batch,
            bulk=bulk,
            request_id="req-1",
            owner=User.objects.get(),
            idempotency_key="-:order",
            inputs="a needle",
            key_start=key.start,
        )
        make_job(model="other", request_id="0" * 32)
        make_job(request_id="1" * 8)
        queries: list[dict[str, str]] = [
            {}, {"status__exact": "failed"}, {"model": "embeddings"}, {"priority__exact": "1"},
            {"worker": str(worker.pk)}, {"error_code": "crashed"}, {"accepted": "1h"}, {"batch": str(batch)},
            {"whole": str(whole.pk)}, {"bulk": str(bulk.pk)}, {"q": "req-1"}, {"q": str(part.pk)},
            {"q": job.pk.hex[-8:]}, {"q": "…" + job.pk.hex[-12:]},
            {"status__exact": "queued", "model": "other", "p": "1"}, {"q": "0" * 32}, {"q": "1" * 8},
            {"owner": str(job.owner_id)}, {"q": "operator"}, {"q": "crashed"}, {"q": "order"}, {"q": "needle"},
            {"q": str(bulk.pk)}, {"q": str(batch)}, {"q": "needle", "model": "other"}, {"q": "needle", "owner": ""},
            {"key_start": key.start}, {"key_start": "gone"}, {"q": "nightly"}, {"q": key.start}, {"q": f"{key.start}…"},
            {"q": "nightly", "key_start": key.start}, {"q": "nightly", "owner": str(job.owner_id)},
            {"worker": ""}, {"priority__exact": ""}, {"model": "", "error_code": ""}, {"status__exact": ""},
        ]  # fmt: skip
        for query in queries:
            with self.subTest(query):
                parameters = QueryDict(mutable=True)
                parameters.update(query)
                lookups = job_lookups.make_lookups_from_query(parameters, User.objects.get())
                assert lookups is not None
                self.assertEqual(set(acts.filter_selected_jobs(lookups, make_row_id())), set(self.listed(**query)))

    def test_what_no_filter_takes_is_said_as_it_is(self) -> None:
        for lookup, value in (("priority", "7"), ("owner", "x"), ("worker", "x"), ("id__gte", None)):
            with self.subTest(lookup):
                self.assertIn(str(value), list_selection_facts({lookup: value})[0][1])

    def test_what_jobs_are_chosen_by_is_said_in_words(self) -> None:
        worker, owner = make_worker(), User.objects.get()
        chosen = {
            "priority__exact": "1", "worker": str(worker.pk), "owner": str(owner.pk), "accepted": "1h",
            "error_code": "crashed", "key_start": "inf_gone",
        }  # fmt: skip
        make_job(priority=Priority.HIGH, worker=worker.pk, owner=owner, error_code="crashed", key_start="inf_gone")
        page = self.request_act("cancel_jobs", **chosen)
        self.client.post(BEGIN, {"plan": self.plan(page)})
        shown = self.text(reverse("admin:inference_act_changelist"))
        for words in (
            "priority: High",
            f"worker: {worker}",
            "owner: operator",
            "error: crashed",
            "API key: inf_gone…",
            " UTC",
        ):
            self.assertIn(words, shown)
        for raw in (str(worker.pk), "id__gte", "id gte", "000000000000"):
            self.assertNotIn(raw, shown + LogEntry.objects.get().change_message)

    def test_a_search_that_contradicts_a_filter_acts_on_nothing(self) -> None:
        make_job(status=Status.FAILED, error_code="lost")
        make_job(status=Status.FAILED, error_code="crashed")
        self.assertEqual(self.listed(error_code="lost", q="crashed"), [])
        self.assertIsNone(
            job_lookups.make_lookups_from_query(QueryDict("error_code=lost&q=crashed"), User.objects.get())
        )

    def test_filters_that_acts_do_not_know_are_refused(self) -> None:
        make_job()
        for query in ({"device": "cpu"}, {"size__gt": "3"}, {"accepted": "x"}):
            self.assertIsNone(
                job_lookups.make_lookups_from_query(QueryDict(urlencode(query)), User.objects.get()), query
            )
        with patch.object(job_lookups, "make_lookups_from_query", return_value=None):
            self.assertIn("takes only the filters", self.request_act("cancel_jobs"))

    def test_an_act_takes_no_more_than_its_limit_and_says_so(self) -> None:
        Job.objects.bulk_create(Job(model="embeddings", inputs="x") for _ in range(7))
        with patch.object(acts, "MOST", 4):
            page = self.request_act("cancel_jobs")
        self.assertIn("There are more jobs: the action handles the oldest 4", page)
        self.client.post(BEGIN, {"plan": self.plan(page)})
        self.assertEqual(Act.objects.get().counted, 4)

    def test_a_plan_that_was_forged_or_is_old_does_nothing(self) -> None:
        make_job()
        plan = self.plan(self.request_act("retry_jobs_alone"))
        for bad in ("", "x", plan[:-3], plan.replace(":", ".", 1)):
            self.assertIn("has expired", self.client.post(BEGIN, {"plan": bad}, follow=True).content.decode())
        with patch("django.core.signing.time.time", return_value=4e9):
            self.client.post(BEGIN, {"plan": plan})
        self.assertFalse(Act.objects.exists())
        other = User.objects.create_superuser("other")
        self.client.force_login(other)
        self.assertIn("has expired", self.client.post(BEGIN, {"plan": plan}, follow=True).content.decode())
        self.assertFalse(Act.objects.exists())
        self.client.force_login(User.objects.exclude(pk=other.pk).get())
        for _ in range(2):  # whoever presses the button twice
            self.client.post(BEGIN, {"plan": plan})
        self.assertEqual(Act.objects.get().kind, ActKind.RETRY_ALONE)
        self.assertEqual(LogEntry.objects.count(), 1)

    def test_one_can_be_stopped(self) -> None:
        act = Act.objects.create(kind=ActKind.CANCEL, newest=make_row_id(), counted=9)
        url = reverse("admin:inference_act_stop", args=[act.pk])
        self.assertEqual(self.client.get(url).status_code, 405)
        for _ in range(2):
            self.client.post(url)
        act.refresh_from_db()
        self.assertEqual((act.state, LogEntry.objects.count()), (ActState.STOPPED, 1))

    def test_who_may_only_look_neither_begins_nor_stops(self) -> None:
        make_job()
        plan = self.plan(self.request_act("cancel_jobs"))
        act = Act.objects.create(kind=ActKind.CANCEL, newest=make_row_id(), counted=9)
        viewer = User.objects.create_user("viewer", is_staff=True)
        viewer.user_permissions.set(Permission.objects.filter(codename__startswith="view_"))
        self.client.force_login(viewer)
        self.assertEqual(self.client.post(BEGIN, {"plan": plan}).status_code, 403)
        self.assertEqual(self.client.post(reverse("admin:inference_act_stop", args=[act.pk])).status_code, 403)
        self.assertNotIn("Stop this action", self.text(reverse("admin:inference_act_change", args=[act.pk])))
        self.assertNotIn('name="plan"', self.request_act("cancel_jobs"))

    def test_nothing_that_was_requested_acts_on_the_reader(self) -> None:
        make_job()
        for evil in MARKUP:
            Act.objects.create(
                kind=ActKind.CANCEL, newest=make_row_id(), counted=1, selection={"request_id": evil}, left={evil: 1}
            )
            for page in (
                self.request_act("cancel_jobs", model=evil),
                self.text(reverse("admin:inference_act_changelist")),
            ):
                self.assertNotIn(evil, page)
