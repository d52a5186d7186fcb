"""The operator's pages: read-only facts, harmless strings, and actions that say exactly what happened."""

import datetime
import math
import re
import uuid
from unittest.mock import patch

from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import TestCase
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from api import request_id
from api.models import ApiKey
from inference.admin import filters, job_lookups
from inference.admin.rendering import display
from inference.fields.ids import make_first_id
from inference.models import Bulk, Figure, Grain, Job, Status, Webhook, WebhookState, Worker, WorkerState
from inference.values.priority import Priority
from tests.conditions import ago

JOBS = reverse("admin:inference_job_changelist")
MARKUP = (
    "<script>alert(1)</script>", "</script><script>alert(1)</script>", "<ScRiPt src=//evil.example/x.js></sCrIpT>",
    '"><img src=x onerror=alert(1)>', "'><svg/onload=alert(1)>", "<iframe srcdoc='<script>alert(1)</script>'>",
    "<a href=javascript:alert(1)>click</a>", "</pre></td></table><form action=//evil.example>", "<!-- gone", "]]><x y>",
    "<style>*{display:none}</style>", '<base href="//evil.example/">', "<meta http-equiv=refresh content=0>",
    "<noscript><p title=\"</noscript><img src=x onerror=alert(1)>\">", "<b onmouseover=alert(1)>",
    '" autofocus onfocus="x()',
)  # fmt: skip
INVISIBLE = (
    "\x1b[31mred\x07", "\x1b]0;title\x07", "\x1b]8;;http://evil.example\x1b\\link", "\x9b31m", "back\x08\x08space",
    "\u202egnp.exe", "\u2066isolated\u2069", "zero\u200bwidth", "\ufeffmark", "line\u2028separator", "nul\x01",
    "\x7fdelete",
)  # fmt: skip
FORMULAS = ("{{ 7 * 7 }}", "{% debug %}", '=HYPERLINK("//evil.example")', "%(password)s {0.__class__}")

UNSEEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u2028-\u202e\u2066-\u2069\ufeff]")


def make_job(**values: object) -> Job:
    return Job.objects.create(**{"model": "embeddings", "inputs": "a text", **values})


def make_worker(**values: object) -> Worker:
    return Worker.objects.create(**{"name": "worker@host", "pid": 7, "state": WorkerState.READY, **values})


def page_of(job: Job) -> str:
    return reverse("admin:inference_job_change", args=[job.pk])


class AdminCase(TestCase):
    def setUp(self) -> None:
        self.client.force_login(User.objects.create_superuser("operator"))

    def text(self, url: str, **query: str) -> str:
        answer = self.client.get(url, query)
        self.assertEqual(answer.status_code, 200, url)
        return answer.content.decode()

    def listed(self, **query: str) -> list[Job]:
        return list(self.client.get(JOBS, query).context["cl"].result_list)

    def act(self, action: str, *chosen: Job) -> list[str]:
        data = {"action": action, "_selected_action": [job.pk for job in chosen]}
        return [str(message) for message in self.client.post(JOBS, data, follow=True).context["messages"]]


class TestJobPages(AdminCase):
    def test_the_list_shows_status_batch_size_times_and_worker(self) -> None:
        begun = ago(10)
        make_job(
            status=Status.SUCCEEDED,
            batch=uuid.uuid4(),
            batch_size=24,
            worker=make_worker().pk,
            created_at=begun,
            started_at=begun + datetime.timedelta(milliseconds=480),
            finished_at=begun + datetime.timedelta(milliseconds=600),
        )
        text = self.text(JOBS)
        for fact in ("badge-succeeded", ">24<", "480 ms", "120 ms", "worker@host", "Normal"):
            self.assertIn(fact, text)

    def test_the_first_page_leads_to_what_it_counts_also_if_that_was_accepted_long_ago(self) -> None:
        job = make_job(status=Status.FAILED, id=make_first_id(ago(7200)), created_at=ago(7200), finished_at=ago(1))
        [link] = re.findall(r'class="tile tile-failed" href="([^"]+)"', self.text(reverse("admin:index")))
        self.assertEqual(list(self.client.get(link).context["cl"].result_list), [job])

    def test_a_page_of_each_status_can_be_read(self) -> None:
        for status in Status:
            self.assertIn(f"badge-{status}", self.text(page_of(make_job(status=status))))

    def test_jobs_are_found_by_id_and_by_request_id_in_full_only(self) -> None:
        job, _other = make_job(request_id="req-1"), make_job(request_id="req-2")
        self.assertEqual(self.listed(q=str(job.pk)), [job])
        self.assertEqual(self.listed(q=f" {job.pk.hex} "), [job])
        for end in (job.pk.hex[-8:], f"…{job.pk.hex[-8:]}", job.pk.hex[-12:].upper()):
            self.assertEqual(self.listed(q=end), [job])
        self.assertEqual(self.listed(q="0" * 8), [])
        with CaptureQueriesContext(connection) as queries:
            self.listed(q=job.pk.hex[-8:])
        compared = [query for query in queries if re.search(r"\bsubstr(ing)?\(", query["sql"])]
        self.assertEqual(len(compared), 1, "all ids are looked through once")
        self.assertEqual(self.listed(q="req-1"), [job])
        self.assertEqual(self.listed(q="req"), [])

    def test_jobs_are_found_by_their_owner_and_what_they_belong_to(self) -> None:
        alice = User.objects.create_user("alice")
        bulk, batch = Bulk.objects.create(model="embeddings", total=1), uuid.uuid4()
        job = make_job(
            owner=alice,
            bulk=bulk,
            bulk_index=0,
            batch=batch,
            status=Status.FAILED,
            error_code="crashed",
            idempotency_key=f"{alice.pk}:order 7",
        )
        make_job(owner=User.objects.get(username="operator"))
        for term in ("alice", str(bulk.pk), str(batch), "crashed", "order 7", f"{alice.pk}:order 7"):
            self.assertEqual(self.listed(q=term), [job], term)
        self.assertEqual(self.listed(owner=str(alice.pk)), [job])
        self.assertEqual(self.listed(owner=str(alice.pk), q="crashed"), [job])
        self.assertRegex(self.text(JOBS), r"field-owner_name[^>]*>alice<")
        self.assertIn(f"?owner={alice.pk}", self.text(JOBS), "a filter")

    def test_the_keys_of_an_owner_lead_to_their_jobs_and_to_the_owner_s(self) -> None:
        alice = User.objects.create_user("alice")
        key = ApiKey.objects.issue_key(owner=alice)[0]
        page = self.text(reverse("admin:api_apikey_changelist"))
        for query in (f"owner={alice.pk}", f"key_start={key.start}"):
            self.assertIn(f'"{JOBS}?{query}"', page)

    def test_jobs_are_shown_with_their_key_and_found_by_it(self) -> None:
        alice = User.objects.create_user("alice")
        made = [ApiKey.objects.issue_key(owner=alice, name=name) for name in ("nightly", "by hand", "by hand", "")]
        nightly, *by_hand, unnamed = [make_job(owner=alice, key_start=row.start) for row, _ in made]
        without = make_job(owner=alice)
        (key, secret), *_ = made
        for term, found in (
            (key.start, [nightly]), (f"{key.start}…", [nightly]), ("nightly", [nightly]), ("by hand", by_hand[::-1]),
            (made[3][0].start, [unnamed]), ("nigh", []), (secret, []),
        ):  # fmt: skip
            self.assertEqual(self.listed(q=term), found, term)
        self.assertEqual(self.listed(key_start=key.start), [nightly])
        self.assertEqual(self.listed(key_start=key.start, q="by hand"), [])
        self.assertEqual(self.listed(key_start="inf_unknown_"), [])
        page = self.text(page_of(nightly))
        self.assertIn(f"<code>{key.start}…</code> nightly", page)
        self.assertNotIn(secret[:13], page)
        self.assertNotIn(key.digest, page)
        self.assertNotIn("inf_", self.text(page_of(without)))

    def test_jobs_of_a_deleted_key_are_found_by_its_beginning(self) -> None:
        key = ApiKey.objects.issue_key(owner=User.objects.get(), name="gone by")[0]
        job = make_job(key_start=key.start)
        key.delete()
        self.assertIn(f"<code>{key.start}…</code>", self.text(page_of(job)))
        self.assertEqual((self.listed(q=key.start), self.listed(q="gone by")), ([job], []))
        page = self.text(JOBS, key_start=key.start)
        self.assertIn(f'aria-current="true">{key.start}…</a>', page)

    def test_who_may_not_look_at_keys_sees_of_them_what_jobs_keep(self) -> None:
        viewer = User.objects.create_user("viewer", is_staff=True)
        key, idle = (ApiKey.objects.issue_key(owner=viewer, name=name)[0] for name in ("nightly", "idle"))
        job = make_job(key_start=key.start)
        for right, sees in (("view_job", False), ("view_apikey", True)):
            viewer.user_permissions.add(Permission.objects.get(codename=right))
            self.client.force_login(viewer)
            pages = self.text(JOBS) + self.text(page_of(job))
            for text in ("nightly", "idle", idle.start):
                self.assertEqual(text in pages, sees, text)
            self.assertEqual("<summary>API key" in pages, sees, "a filter by what one may not see filters nothing")
            self.assertIn(f"<code>{key.start}…</code>", pages)
            self.assertEqual(self.listed(q="nightly"), [job] if sees else [])
            self.assertEqual((self.listed(q=key.start), self.listed(key_start=key.start)), ([job], [job]))

    def test_a_few_keys_are_listed_to_choose_from_and_the_one_that_is_chosen(self) -> None:
        owner = User.objects.get()
        first, *others = [ApiKey.objects.issue_key(owner=owner, name=f"key {number}")[0] for number in range(22)]
        make_job()
        with CaptureQueriesContext(connection) as queries:
            page = self.text(JOBS)
        shown = [key for key in (first, *others) if f"?key_start={key.start}" in page]
        self.assertEqual(shown, others[1:])
        self.assertFalse([query for query in queries if "DISTINCT" in query["sql"]])
        self.assertIn(f"{first.start}… key 0", self.text(JOBS, key_start=first.start))

    def test_jobs_are_found_by_the_text_of_their_error_and_the_beginning_of_their_input(self) -> None:
        failed = make_job(
            status=Status.FAILED,
            error_code="engine_error",
            error_detail="The model failed on 100%.",
            error_raised="RuntimeError: a shape (3, 4)",
        )
        alone, listed, named = (
            make_job(inputs=inputs)
            for inputs in (
                'say "Grüße" to all',
                ["say more", "a second"],
                {"question": "what do you say"},
            )
        )
        far = make_job(inputs="x" * 5_000 + " a rare word")
        whole = make_job(inputs=[], parts=1, size=1)
        make_job(inputs=["say nothing"], whole=whole.pk, place=0)
        for term, found in (
            ("shape (3", [failed]), ("on 100%", [failed]), ("on 10_%", []), ('"Grüße"', [alone]),
            ("what do you", [named]), ("say", [named, listed, alone]), ("rare word", []), ("a second", [listed]),
        ):  # fmt: skip
            self.assertEqual(self.listed(q=term), found, term)
        self.assertEqual(self.listed(q="say", model="gone"), [])
        self.assertNotIn(far, self.listed(q="say"))

    def test_texts_are_looked_for_in_so_many_of_the_newest_jobs_and_that_is_said(self) -> None:
        old = make_job(inputs="the needle")
        newer = [make_job(inputs=f"the needle {place}") for place in range(5)]
        bounds = patch.multiple(job_lookups, SCANNED=4, CHUNK=2, SCAN_S=math.inf)
        with bounds, CaptureQueriesContext(connection) as queries:
            answer = self.client.get(JOBS, {"q": "needle"})
        self.assertEqual(list(answer.context["cl"].result_list), newer[:0:-1])
        looked = [query["sql"] for query in queries if "LIKE" in query["sql"]]
        self.assertEqual([sql.count("LIMIT 2") for sql in looked], [1, 1])
        self.assertContains(answer, "newest 4 jobs")
        with patch.multiple(job_lookups, FOUND=3, CHUNK=2, SCAN_S=math.inf):
            answer = self.client.get(JOBS, {"q": "needle"})
        self.assertEqual(list(answer.context["cl"].result_list), newer[:1:-1])
        self.assertContains(answer, "newest 3 jobs that match")
        self.assertEqual(self.listed(q="needle"), [*reversed(newer), old])
        self.assertNotContains(self.client.get(JOBS, {"q": str(old.pk)}), "The search covered")

    def test_a_count_that_was_not_made_to_its_end_is_not_shown_as_a_number(self) -> None:
        Job.objects.bulk_create(Job(model="embeddings", inputs="x") for _ in range(60))
        for query in ({}, {"model": "embeddings"}):
            with patch.object(filters.BoundedPaginator, "most", 55):
                text = self.text(JOBS, **query)
            self.assertIn("55+ jobs", text)
            self.assertNotRegex(text, r"\b55 (results|jobs|selected)")
        self.assertIn("60 jobs", self.text(JOBS))
        self.assertNotRegex(self.text(JOBS), r"60\+(?!00:00)")  # but for a time's zone
        self.assertNotRegex(self.text(JOBS), r"\d results? \(")
        self.assertIn("1 result", self.text(JOBS, q=str(make_job().pk)))

    def test_a_request_s_id_that_looks_like_a_job_s_is_found_too(self) -> None:
        """Those that the service makes do."""
        job = make_job()
        for request in (request_id.begin_request(None), str(uuid.uuid4()), "deadbeef", "0123456789"):
            expected = make_job(request_id=request)
            self.assertEqual(self.listed(q=request), [expected])
        request_id.end_request()
        for end in (str(job.pk), job.pk.hex, job.pk.hex[-8:]):
            make_job(request_id=end)
            self.assertEqual(self.listed(q=end), [job], "no client hides a job")

    def test_a_list_in_parts_is_one_job_with_a_page_that_leads_to_them(self) -> None:
        batch = uuid.uuid4()
        whole = make_job(inputs=[], parts=2, size=3, published_at=ago(), request_id="req-1")
        common = {"whole": whole.pk, "request_id": "req-1"}
        last = make_job(inputs=["gamma"], place=2, status=Status.FAILED, **common)
        ran = {"batch": batch, "batch_size": 2, "worker": make_worker().pk}
        first = make_job(inputs=["alpha", "beta"], place=0, **ran, **common)
        self.assertEqual(self.listed(), [whole])
        self.assertEqual(self.listed(status__exact="failed"), [])
        self.assertEqual(set(self.listed(whole=str(whole.pk))), {first, last})
        self.assertEqual(self.listed(batch=str(batch)), [first])
        self.assertEqual(self.listed(worker=str(first.worker)), [first])
        self.assertEqual(self.listed(q=str(last.pk)), [last])
        self.assertEqual(self.listed(q="req-1"), [whole])
        page = self.text(page_of(whole))
        self.assertRegex(page, rf'\?whole={whole.pk}">2 parts')
        self.assertRegex(page, r"(?s)alpha.*beta.*gamma")
        self.assertRegex(self.text(page_of(last)), rf'from input 2 of <a href="{page_of(whole)}">')
        self.assertIn("1 job cancelled before the run", self.act("cancel_jobs", whole))
        self.assertEqual({job.status for job in Job.objects.filter(whole=whole.pk)}, {"cancelled", "failed"})

    def test_filters_narrow_the_list(self) -> None:
        worker = make_worker()
        job = make_job(status=Status.FAILED, error_code="crashed", priority=Priority.HIGH, worker=worker.pk)
        old = make_job(id=make_first_id(ago(days=2)), model="gone")
        for query in (
            {"status__exact": "failed"},
            {"priority__exact": "1"},
            {"model": "embeddings"},
            {"error_code": "crashed"},
            {"worker": str(worker.pk)},
            {"accepted": "1h"},
        ):
            self.assertEqual(self.listed(**query), [job], query)
        self.assertEqual(self.listed(accepted="7d"), [job, old])

    def test_failures_are_found_by_their_error_without_a_scan(self) -> None:
        job = make_job(status=Status.FAILED, error_code="crashed")
        found = self.client.get(JOBS, {"error_code": "crashed"}).context["cl"]
        self.assertEqual(list(found.result_list), [job])
        if connection.vendor == "sqlite":  # PostgreSQL chooses by how many rows there are
            self.assertIn("job_by_error", found.queryset.explain())

    def test_a_nonsensical_filter_is_no_server_error(self) -> None:
        for query in ({"worker": "x"}, {"batch": "x"}, {"accepted": "x"}, {"status__exact": "x"}, {"p": "999"}):
            self.assertLess(self.client.get(JOBS, query).status_code, 400, query)

    def test_a_value_that_no_key_can_be_is_no_server_error(self) -> None:
        for name in ("owner", "worker"):
            for value in ("9" * 24, "9" * 5_000, "1x", "\0", "²"):
                self.assertLess(self.client.get(JOBS, {name: value}).status_code, 400, (name, value[:30]))

    def test_what_is_chosen_is_listed_also_where_many_others_are(self) -> None:
        workers = [make_worker(name=f"w{number:02}@host") for number in range(12)]
        users = [User.objects.create(username=f"u{number:02}") for number in range(22)]
        for name, pk, shown in (("worker", workers[0].pk, "w00@host (7)"), ("owner", users[-1].pk, "u21")):
            self.assertIn(f'aria-current="true">{shown}<', self.text(f"{JOBS}?{name}={pk}"))

    def test_the_list_neither_counts_all_rows_nor_reads_their_data(self) -> None:
        for jobs, times in ((0, 1), (3, 2), (60, 3)):  # few of many rows are looked for once
            Job.objects.bulk_create(Job(model="embeddings", inputs="x") for _ in range(jobs))
            with CaptureQueriesContext(connection) as queries:
                self.client.get(JOBS)
            of_jobs = [query["sql"] for query in queries if 'FROM "inference_job"' in query["sql"]]
            for sql in of_jobs:
                self.assertTrue("COUNT" not in sql or f"LIMIT {filters.COUNT_LIMIT}" in sql, sql)
                self.assertRegex(sql, "LIMIT|IN ")
                self.assertNotIn('"inference_job"."inputs"', sql)
                self.assertNotIn('"inference_job"."output"', sql)
            self.assertEqual(len(of_jobs), times, jobs)

    def test_the_end_of_an_id_finds_it_however_many_digits(self) -> None:
        job, _ = make_job(), make_job()
        for digits in range(8, 13):
            self.assertEqual([found.pk for found in self.listed(q=f"…{job.pk.hex[-digits:]}")], [job.pk], digits)
            self.assertEqual(self.listed(q="0" * digits), [])

    def test_of_two_filters_the_one_that_finds_fewer_is_looked_at_first(self) -> None:
        worker = make_worker().pk
        for status in Status:
            make_job(status=status, priority=Priority.LOW, worker=worker)
        make_job(status=Status.SUCCEEDED, priority=Priority.LOW, model="other")
        for index, query in (
            ("job_of_model", {"status__exact": "succeeded", "model": "embeddings"}),
            ("job_by_status", {"status__exact": "failed", "model": "embeddings"}),
            ("job_by_worker", {"priority__exact": "3", "worker": str(worker), "status__exact": "succeeded"}),
            ("job_by_priority", {"priority__exact": "1", "worker": str(worker)}),
        ):
            with CaptureQueriesContext(connection) as queries:
                found = self.listed(**query)
            self.assertEqual(len(found), 0 if "1" in query.values() else 1, query)
            [look] = [query["sql"] for query in queries if "LIMIT 51" in query["sql"]]
            if connection.vendor == "sqlite":  # others know how many there are of each
                with connection.cursor() as cursor:
                    cursor.execute(f"EXPLAIN QUERY PLAN {look}")
                    self.assertIn(index, str(cursor.fetchall()), query)

    def test_pages_follow_one_another(self) -> None:
        made = [make_job() for _ in range(113)]
        newest = [job.pk for job in reversed(made)]
        pages = [[job.pk for job in self.listed(p=str(number))] for number in (1, 2, 3)]
        self.assertEqual([len(page) for page in pages], [50, 50, 13])
        self.assertEqual([pk for page in pages for pk in page], newest)
        self.assertEqual([job.pk for job in self.listed(q=str(made[7].pk))], [made[7].pk])
        Job.objects.filter(pk__in=newest[49:]).update(model="other")
        self.assertEqual([job.pk for job in self.listed(model="embeddings")], newest[:49])

    def test_nothing_can_be_added_changed_or_deleted(self) -> None:
        job = make_job()
        self.assertEqual(self.client.get(reverse("admin:inference_job_add")).status_code, 403)
        self.assertEqual(self.client.post(page_of(job), {"model": "other"}).status_code, 403)
        self.assertEqual(self.client.post(reverse("admin:inference_job_delete", args=[job.pk])).status_code, 403)
        job.refresh_from_db()
        self.assertEqual(job.model, "embeddings")

    def test_an_embedding_is_shown_by_its_head(self) -> None:
        text = self.text(page_of(make_job(status=Status.SUCCEEDED, output=[0.25] * 384)))
        self.assertIn("384 numbers from", text)

    def test_a_huge_input_is_cut(self) -> None:
        text = self.text(page_of(make_job(inputs="x" * 1_000_000)))
        self.assertLess(len(text), 60_000)
        self.assertIn("more characters", text)


class TestEmptyPages(AdminCase):
    def test_an_empty_list_says_what_would_be_in_it(self) -> None:
        for model, name in (("job", "job"), ("act", "action"), ("webhook", "webhook"), ("worker", "worker")):
            text = self.text(reverse(f"admin:inference_{model}_changelist"))
            self.assertRegex(text, rf"There are no {name}s yet\. An? {name} (is|cancels) ")
        self.assertIn("No jobs match the filters", self.text(JOBS, status__exact="failed"))
        make_job()
        self.assertNotIn("There are no jobs yet", self.text(JOBS))

    def test_a_page_that_is_not_there_says_so_and_leads_back(self) -> None:
        for path in ("/admin/nothing/", reverse("admin:inference_pausedmodel_change", args=["<b>nothing"])):
            missing = self.client.get(path)
            for words in ("There is nothing at /admin/", 'href="/admin/"', "theme.css"):
                self.assertContains(missing, words, status_code=404)
            self.assertNotContains(missing, "<b>", status_code=404)

    def test_a_page_that_is_refused_says_so_and_leads_back(self) -> None:
        self.client.force_login(User.objects.create_user("<b>clerk", is_staff=True))
        refused = self.client.get(JOBS)
        for words in ("&lt;b&gt;clerk has no permission", 'href="/admin/"', "theme.css"):
            self.assertContains(refused, words, status_code=403)
        self.assertContains(self.client.get("/admin/"), "A superuser can add the user to the group")


class TestActions(AdminCase):
    def test_cancelling_says_what_became_of_each_kind(self) -> None:
        queued, running = make_job(), make_job(status=Status.RUNNING)
        done = make_job(status=Status.SUCCEEDED)
        self.assertEqual(
            self.act("cancel_jobs", queued, running, done),
            [
                "1 job cancelled before the run",
                "1 job cancelled during the run; the output is dropped",
                "1 job not changed: succeeded already",
            ],
        )
        self.assertEqual(
            list(Job.objects.order_by("pk").values_list("status", flat=True)), ["cancelled"] * 2 + ["succeeded"]
        )

    def test_retrying_makes_new_jobs_and_leaves_the_old_ones_alone(self) -> None:
        failed = [make_job(status=Status.FAILED, inputs=f"text {n}") for n in range(2)]
        [message] = self.act("retry_jobs", *failed)
        self.assertIn("2 jobs retried as new jobs: ", message)
        for job in Job.objects.filter(status=Status.QUEUED):
            self.assertIn(f'<a href="{page_of(job)}">…{job.pk.hex[-8:]}</a>', message)
        self.assertEqual(Job.objects.filter(status=Status.FAILED).count(), 2)
        self.assertEqual(
            set(Job.objects.filter(status=Status.QUEUED).values_list("inputs", flat=True)), {"text 0", "text 1"}
        )

    def test_a_retry_that_is_refused_says_why(self) -> None:
        job = make_job(status=Status.FAILED, model="gone")
        [message] = self.act("retry_jobs", job)
        self.assertIn("1 job not retried: There is no model 'gone'", message)
        self.act("cancel_jobs", job)
        history = self.text(reverse("admin:inference_job_history", args=[job.pk]))
        self.assertNotRegex(history, "Submitted|Cancelled", "of what did not happen")

    def test_a_job_is_steered_from_its_own_page(self) -> None:
        job = make_job()
        self.assertIn("Cancel this job", self.text(page_of(job)))
        history = reverse("admin:inference_job_history", args=[job.pk])
        self.assertIn("No operator has acted on this", self.text(history))
        self.client.post(reverse("admin:inference_job_steer", args=[job.pk]), {"action": "cancel"})
        job.refresh_from_db()
        self.assertEqual(job.status, Status.CANCELLED)
        self.assertNotIn("Cancel this job", self.text(page_of(job)))
        self.assertIn("Requested to cancel it.", self.text(history))

    def test_who_may_only_look_cannot_steer(self) -> None:
        job, viewer = make_job(), User.objects.create_user("viewer", is_staff=True)
        viewer.user_permissions.add(Permission.objects.get(codename="view_job"))
        self.client.force_login(viewer)
        self.assertNotIn("Cancel", self.text(page_of(job)))
        self.assertNotIn("cancel_jobs", self.text(JOBS))
        answer = self.client.post(reverse("admin:inference_job_steer", args=[job.pk]), {"action": "cancel"})
        self.assertEqual(answer.status_code, 403)
        self.client.post(JOBS, {"action": "cancel_jobs", "_selected_action": [job.pk]})
        job.refresh_from_db()
        self.assertEqual(job.status, Status.QUEUED)

    def test_steering_needs_a_post(self) -> None:
        self.assertEqual(self.client.get(reverse("admin:inference_job_steer", args=[make_job().pk])).status_code, 405)


class TestWorkerPages(AdminCase):
    def test_a_worker_that_went_silent_is_not_called_ready(self) -> None:
        worker = make_worker(heartbeat_at=ago(minutes=3))
        text = self.text(reverse("admin:inference_worker_change", args=[worker.pk]))
        self.assertIn("badge-silent", text)

    def test_a_model_that_could_not_be_loaded_says_why_in_full(self) -> None:
        why = "the package is not installed: " + "x" * 500
        replicas = {
            "0": {
                "pid": 8,
                "device": "cuda:0",
                "chosen": "nvidia-smi lists them",
                "models": {"embeddings": why, "fill": "ready"},
            }
        }
        worker = make_worker(state=WorkerState.DEGRADED, replicas=replicas, error=f"embeddings: {why}")
        page = self.text(reverse("admin:inference_worker_change", args=[worker.pk]))
        self.assertEqual((page.count(why), page.count("nvidia-smi lists them")), (2, 1))
        self.assertIn(why, self.text(reverse("admin:index")))


class TestWebhookPages(AdminCase):
    def test_a_webhook_is_found_from_its_job_and_says_why_it_failed(self) -> None:
        job = make_job(status=Status.SUCCEEDED)
        webhook = Webhook.objects.create(
            job=job, url="https://example.org/<b>", state=WebhookState.GIVEN_UP, last_error="503 \x1b[31m"
        )
        page = reverse("admin:inference_webhook_change", args=[webhook.pk])
        self.assertIn(page, self.text(page_of(job)))
        for text in (self.text(page), self.text(reverse("admin:inference_webhook_changelist"))):
            self.assertIn("given up", text)
            self.assertIn("503 \\u001b[31m", text)
            self.assertNotIn("<b>", text)

    def test_only_a_notice_that_is_still_to_be_sent_is_due(self) -> None:
        for state, due in ((WebhookState.PENDING, 1), (WebhookState.DELIVERED, 0), (WebhookState.GIVEN_UP, 0)):
            hook = Webhook.objects.create(job=make_job(), url="https://example.org", state=state, due_at=ago(hours=-5))
            page = self.text(reverse("admin:inference_webhook_change", args=[hook.pk]))
            self.assertEqual(page.count("in 5 h"), due, state)

    def test_what_could_not_be_delivered_is_sent_now(self) -> None:
        later, url = ago(hours=-5), reverse("admin:inference_webhook_changelist")
        hooks = [
            Webhook.objects.create(job=make_job(), url="https://example.org", state=state, attempts=3, due_at=later)
            for state in (WebhookState.PENDING, WebhookState.GIVEN_UP, WebhookState.DELIVERED)
        ]
        send = {"action": "send_now", "_selected_action": [hook.pk for hook in hooks]}
        self.assertIn("2 notices are due now", self.client.post(url, send, follow=True).content.decode())
        due = Webhook.objects.filter(state=WebhookState.PENDING, attempts=0, due_at__lte=ago())
        self.assertEqual((set(due), LogEntry.objects.count()), (set(hooks[:2]), 2))
        viewer = User.objects.create_user("viewer", is_staff=True)
        viewer.user_permissions.add(Permission.objects.get(codename="view_webhook"))
        self.client.force_login(viewer)
        due.update(attempts=9)
        self.client.post(url, send)
        self.assertEqual(Webhook.objects.filter(attempts=9).count(), 2)

    def test_the_jobs_of_a_bulk_are_found_from_one_of_them(self) -> None:
        bulk = Bulk.objects.create(model="embeddings", total=2)
        jobs = [make_job(bulk=bulk, bulk_index=index) for index in range(2)]
        make_job()
        self.assertIn(f"?bulk={bulk.pk}", self.text(page_of(jobs[0])))
        self.assertEqual(set(self.listed(bulk=str(bulk.pk))), set(jobs))


class TestDashboard(AdminCase):
    url = reverse("admin:index")

    def test_it_is_readable_with_nothing_in_the_database(self) -> None:
        text = self.text(self.url)
        self.assertIn("No worker runs", text)
        self.assertIn("embeddings", text)

    def test_what_follows_from_a_cause_is_folded_below_it(self) -> None:
        make_worker(name="first@host", model_names=["embeddings"], state=WorkerState.GONE)
        text = self.text(self.url)
        self.assertRegex(text, r"(?s)first@host has been gone since [^<]*</strong>.*<details.*No worker serves embed")
        self.assertEqual(text.count("<strong>Nobody serves"), 0)

    def test_a_queue_that_is_nearly_full_has_a_red_bar(self) -> None:
        make_job()
        self.assertIn('max="1000" low="500.0" high="900.0" optimum="0" value="1"', self.text(self.url))

    def test_it_shows_queues_batches_workers_and_failures(self) -> None:
        make_worker(model_names=["embeddings"], replicas_total=2, replicas_ready=2, replicas_busy=1, held=43)
        for _ in range(3):
            make_job()
        make_job(status=Status.FAILED, error_code="crashed", error_detail="its process died")
        self.count({"ended": {"failed crashed": 1_234}, "batch": {"sum": 24.0, "in": {"19": 1}}})
        text = self.text(self.url)
        for fact in (
            ">3</a> of 1,000",
            "1 batch of 17-32",
            "24.0",
            "1,234",
            "2 of 2 ready, 1 busy",
            "its process died",
        ):
            self.assertIn(fact, text)

    def count(self, tally: dict[str, object], hours: float = 0) -> None:
        start = ago(hours=hours)
        Figure.objects.create(grain=Grain.TICK, start=start, model="embeddings", tally=tally)

    def test_failures_older_than_an_hour_are_not_shown(self) -> None:
        old = make_first_id(ago(hours=2))
        make_job(id=old, status=Status.FAILED, error_code="crashed", error_detail="long ago")
        self.count({"ended": {"failed crashed": 1}}, hours=2)
        self.assertNotIn("long ago", self.text(self.url))

    def test_who_may_not_see_jobs_sees_none(self) -> None:
        make_job(status=Status.FAILED, error_code="crashed", error_detail="private text")
        self.count({"ended": {"failed crashed": 1}})
        self.assertIn("private text", self.text(self.url))
        self.client.force_login(User.objects.create_user("clerk", is_staff=True))
        self.assertNotIn("private text", self.text(self.url))


class TestCatalog(AdminCase):
    """What runs where, on the first page."""

    def make(self, *models: dict[str, str], problem: str = "") -> None:
        make_worker(catalog={"digest": "x", "problem": problem, "models": list(models)})

    def entry(self, **values: str) -> dict[str, str]:
        known = {
            "name": "embeddings",
            "model": "a/b",
            "revision": "714eb0f",
            "digest": "d",
            "state": "ready",
            "why": "",
        }
        return {**known, "why": "", **values}

    def test_it_shows_revisions_and_states_and_why_one_failed(self) -> None:
        self.make(self.entry(), self.entry(revision="b1f2c3d", state="failed", why="no weights <there>"))
        page = self.text("/admin/")
        for shown in ("714eb0f", "badge-ready", "b1f2c3d", "badge-failed", "no weights &lt;there&gt;"):
            self.assertIn(shown, page)

    def test_it_shows_a_model_that_is_gone_from_the_file_while_it_has_jobs(self) -> None:
        make_job(model="gone")
        self.assertIn("removed from models.toml", self.text("/admin/"))
        self.make(self.entry(name="gone", state="draining"))
        page = self.text("/admin/")
        self.assertIn("badge-draining", page)
        self.assertNotIn("removed from models.toml", page)

    def test_it_says_what_is_wrong_with_the_file_of_a_worker(self) -> None:
        self.make(problem="models.toml, line 3: no.")
        self.assertIn("models.toml, line 3: no. The models do not change until you correct it.", self.text("/admin/"))

    def test_a_row_of_an_earlier_version_has_none(self) -> None:
        make_worker(catalog=None)
        self.text("/admin/")


class TestDisplay(TestCase):
    def test_durations_are_read_at_a_glance(self) -> None:
        for seconds, text in ((0.0, "0 ms"), (0.012, "12 ms"), (3.44, "3.4 s"), (59, "59 s"), (300, "5 min"),
                              (7200, "2 h"), (259_200, "3 d"), (None, "-")):  # fmt: skip
            self.assertEqual(display.format_duration(seconds), text)

    def test_sizes_are_in_powers_of_1024(self) -> None:
        for size, text in ((12, "12 bytes"), (2048, "2.0 KiB"), (91 * 2**20, "91 MiB"), (6 * 2**30, "6.0 GiB")):
            self.assertEqual(display.format_size(size), text)

    def test_an_id_of_a_moment_sorts_before_every_job_of_it(self) -> None:
        job = make_job()
        moment = job.created_at
        self.assertLess(make_first_id(moment - datetime.timedelta(seconds=1)), job.pk)
        self.assertGreater(make_first_id(moment + datetime.timedelta(seconds=1)), job.pk)
