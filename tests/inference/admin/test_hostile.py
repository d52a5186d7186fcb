"""Row 23 of the faults: scripts, marks that hide, formulas and huge texts in all that others write, on every page, in
every file, answer and line: nothing runs, nothing breaks, nothing is taken for what it is not."""

from __future__ import annotations

import csv
import io
import json
import logging
import re
import sys
import uuid
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection
from django.urls import reverse

from api.models import ApiKey
from inference.admin.rendering.export import FORMULA
from inference.fields.ids import make_row_id
from inference.models import (
    Act,
    ActKind,
    Bulk,
    Figure,
    Grain,
    Job,
    Mark,
    PausedModel,
    Status,
    Webhook,
    Worker,
    WorkerState,
)
from inference.status import attention, metrics
from inference.telemetry import logs
from tests.conditions import ago
from tests.inference.admin.test_fleet import entry, learnt
from tests.inference.test_admin import FORMULAS, INVISIBLE, JOBS, MARKUP, UNSEEN, AdminCase, make_job

STAMP = "2026-11-23 12:00:00,000 INFO    api.access"
HIDDEN = ("x" * 100_000, "".join(INVISIBLE[:6]), "".join(INVISIBLE[6:]), "\u202e\u2066" * 50)
SHOWN = (*MARKUP, *HIDDEN)  # of which a browser makes something; the others act in exports and terminals
TEXTS = (
    *SHOWN, *FORMULAS, "=cmd|' /C calc'!A0", "@SUM(1+1)*cmd", "+1", f"late\n{STAMP} forged", f"late\r{STAMP} forged",
)  # fmt: skip
LISTS = (
    "inference_job", "inference_worker", "inference_pausedmodel", "inference_webhook", "inference_act", "api_apikey",
    "auth_user",
)  # fmt: skip
OWN = ("/", "?", "#", ".")  # what an address on a page may begin with


class Acting(HTMLParser):
    """What of a page could act: scripts that are not ours, handlers, addresses elsewhere."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in ("iframe", "base", "object", "embed", "style") or (tag == "script" and "src" not in values):
            self.found.append(f"<{tag}>")
        for name, value in attrs:
            leads = name in ("src", "href", "action", "formaction", "data-url", "data-figures", "data-now")
            if (
                name.startswith("on")
                or name in ("srcdoc", "style", "autofocus")
                or (leads and value and not value.startswith(OWN))
            ):
                self.found.append(f"<{tag} {name}={value}>")


def named(text: str) -> str:
    """As a model may be called: the file and the API take no name of several lines."""
    return re.sub("[\r\n]", " ", text)[:100]


class HostileTests(AdminCase):
    def setUp(self) -> None:
        super().setUp()
        self.owner = User.objects.get()

    def write(self, text: str) -> Job:
        """Into every field that a client, a model, a host or an operator fills; as long as it may be."""
        name, now = named(text), ago()
        model = entry(name=name, why=text, revision=name, model=name)
        worker = Worker.objects.create(
            name=text[:255],
            pid=7,
            state=WorkerState.DEGRADED,
            error=text,
            devices=[name],
            model_names=[name],
            catalog={"models": [model], "problem": text},
            costs={name: learnt()},
            speeds={name: 1.0},
            connected=False,
            generation={
                name: {
                    "rows": 1,
                    "room": 1,
                    "tokens": 1,
                    "tokens_per_s": 1.0,
                    "first_token_s": {"p50": 1.0, "p95": 1.0},
                }
            },
            replicas={
                "0": {
                    "pid": 1,
                    "device": name,
                    "chosen": text,
                    "models": {name: text},
                    "notes": {name: text},
                    "memory": {name: 1},
                    "ended": 9,
                    "withdrawn_s": 9,
                }
            },
        )
        silent = Worker.objects.create(name=text[:254] + "2", pid=8, model_names=[name], state=WorkerState.GONE)
        key = ApiKey.objects.issue_key(owner=self.owner, name=name)[0]
        bulk = Bulk.objects.create(model=name, total=1, rejected=[[0, text, text]], request_id=text[:128])
        ran = {"worker": worker.pk, "batch": uuid.uuid4(), "batch_size": 1, "device": text[:20], "started_at": now}
        job = make_job(
            model=name,
            inputs=[text, {text: text}],
            parameters={text: text},
            output=[{"label": text, "score": 0.5}],
            status=Status.FAILED,
            error_code=text[:40],
            error_detail=text,
            request_id=text[:128],
            owner=self.owner,
            idempotency_key=f"1:{text}"[:300],
            bulk=bulk,
            bulk_index=0,
            finished_at=now,
            key_start=key.start,
            **ran,
        )
        make_job(model=name, inputs=text, key_start=text[:12])
        Webhook.objects.create(job=job, url=f"https://{text}"[:500], attempts=3, last_error=text[:300], due_at=now)
        Act.objects.create(kind=ActKind.CANCEL, newest=job.pk, counted=1, selection={"model": text}, left={text: 1})
        PausedModel.objects.create(model=name, paused_by=self.owner)
        tally = {"ended": {f"failed {text[:40]}": 9}, "batch": {"sum": 1.0, "in": {"0": 1}}, "memory": {name: 1}}
        Figure.objects.create(grain=Grain.TICK, start=now, model=name, tally=tally)
        Figure.objects.create(grain=Grain.EVER, start=now, model=name, tally={"refused": {text[:40]: 1}})
        Mark.objects.create(kind="deployed", text=text[:300])
        LogEntry.objects.log_actions(str(self.owner.pk), [job], CHANGE, text)
        self.addresses = self.pages(text, job, worker, silent)
        return job

    def pages(self, text: str, job: Job, worker: Worker, silent: Worker) -> list[str]:
        def change(name: str, pk: Any, view: str = "change") -> str:
            return reverse(f"admin:{name}_{view}", args=[pk])

        found = ["/admin/", reverse("charts:now"), reverse("admin:inference_job_batches")]
        found += [reverse(f"admin:{name}_changelist") for name in LISTS]
        found += [change("inference_job", job.pk, view) for view in ("change", "history")]
        found += [
            change("inference_worker", row.pk, view) for row in (worker, silent) for view in ("change", "history")
        ]
        found += [change("inference_pausedmodel", named(text)), reverse("admin:inference_job_batch", args=[job.batch])]
        found += [change("inference_webhook", Webhook.objects.get().pk), change("inference_act", Act.objects.get().pk)]
        found += [change("api_apikey", ApiKey.objects.get().pk, view) for view in ("change", "history", "delete")]
        return found

    def erase(self) -> None:
        for kind in (Webhook, Job, Bulk, Act, Worker, PausedModel, ApiKey, Figure, Mark, LogEntry):
            kind._default_manager.all().delete()

    def each(self, texts: Sequence[str] = TEXTS) -> Any:
        """A few texts are enough on PostgreSQL, on which only the statements of each page depend."""
        for text in texts if connection.vendor == "sqlite" else texts[::7]:
            job = self.write(text)
            yield text, job
            self.erase()

    def assert_does_not_act(self, page: str, text: str, what: str) -> None:
        self.assertEqual(Acting(page).found, [], what)
        self.assertFalse(text in MARKUP and text in page, what)

    def assert_harmless(self, page: str, text: str, what: str) -> None:
        self.assert_does_not_act(page, text, what)
        self.assertIsNone(UNSEEN.search(page), what)
        self.assertLess(len(page), 1_000_000, what)

    def test_no_page_acts_on_its_reader(self) -> None:
        for text, _job in self.each(SHOWN):
            for path in self.addresses:
                with self.subTest(text[:20], path=path):
                    self.assert_harmless(self.text(path), text, path)

    def test_no_query_acts_on_its_reader(self) -> None:
        make_job()
        for text in SHOWN:
            value = text[:2000]
            for query in ({"q": value}, {"model": value}, {"error_code": value}, {"worker": value}, {"batch": value},
                          {"key_start": value}):  # fmt: skip
                answer = self.client.get(JOBS, query, follow=True)
                self.assertLess(answer.status_code, 500)
                self.assert_does_not_act(answer.content.decode(), text, str(query)[:80])
            act = {"action": "cancel_jobs", "select_across": "1", "_selected_action": [Job.objects.all()[0].pk]}
            answer = self.client.post(f"{JOBS}?model={value[:50]}", act, follow=True)
            self.assert_does_not_act(answer.content.decode(), text, "confirm")

    def test_a_filter_that_was_typed_by_hand_is_answered(self) -> None:
        typed = ("model=%00", "key_start=%00", "error_code=%00", "status__exact=%00", "request_id=%00", "q=%00",
                 "worker=%00", f"owner={'9' * 24}", "created_at__year=99999", "size=x", "p=99999999999999999999",
                 "inputs__contains=a", "output=a", "parameters__gt=1", "error_detail__regex=(")  # fmt: skip
        for query in typed:
            for path in (JOBS, reverse("admin:inference_job_export", args=["csv"])):
                with self.subTest(query, path=path):
                    self.assertLess(self.client.get(f"{path}?{query}").status_code, 500)

    def test_no_filter_reads_documents_or_looks_for_patterns(self) -> None:
        job, worker = make_job(size=3), Worker.objects.create(name="w", pid=1)
        for name, queries in (
            ("job", ("inputs=x", "output__a=1", "error_detail__contains=a", "owner__password__startswith=a")),
            ("worker", ("name__regex=(", "replicas__0__pid=1", "error__icontains=a")),
            ("act", ("selection__model=a", "by__password__startswith=a")),
        ):
            for query in queries:
                with self.subTest(name, query=query):
                    path = reverse(f"admin:inference_{name}_changelist")
                    self.assertEqual(self.client.get(f"{path}?{query}").status_code, 400)
        for query in ("size=3", "size__gte=3", f"pk__in={job.pk},{worker.pk}", "created_at__gte=2026-01-01T00:00Z",
                      "owner__isnull=1"):  # fmt: skip
            with self.subTest(query):
                self.assertIn(str(job.pk), self.text(f"{JOBS}?{query}"))

    def test_the_figures_of_the_charts_are_json_and_no_page(self) -> None:
        for text, _job in self.each():
            answer = self.client.get(reverse("charts:figures"), {"model": text[:100]})
            self.assertEqual(answer.headers["Content-Type"], "application/json")
            self.assertEqual(answer.headers["X-Content-Type-Options"], "nosniff")
            self.assertEqual(answer.json()["model"], text[:100])

    def test_no_cell_of_an_export_is_a_formula_and_each_line_is_a_job(self) -> None:
        for text, job in self.each():
            read = {
                form: self.client.get(reverse("admin:inference_job_export", args=[form])) for form in ("csv", "jsonl")
            }
            table = bytes(read["csv"].getvalue()).decode()
            rows = list(csv.DictReader(io.StringIO(table, newline="")))
            self.assertEqual([row["id"] for row in rows][1:], [str(job.pk)])
            cells = [str(cell) for row in rows for cell in row.values()]
            self.assertEqual([cell for cell in cells if cell.strip().startswith(FORMULA)], [])
            lines = [json.loads(line) for line in bytes(read["jsonl"].getvalue()).decode().split("\n") if line]
            self.assertEqual([line["error_detail"] for line in lines][1:], [text])

    def test_what_a_terminal_shows_does_not_act_on_it(self) -> None:
        for _text, _job in self.each():
            codes = {item.code for item in attention.find_items()}
            self.assertLessEqual({"ModelPaused", "WorkerDegraded", "WorkerGone", "WebhooksFail"}, codes)
            shown, json_output = io.StringIO(), io.StringIO()
            for out, options in ((shown, {}), (json_output, {"json": True})):
                with self.assertRaises(SystemExit):
                    call_command("status", stdout=out, **options)
            self.assertIsNone(UNSEEN.search(shown.getvalue()))
            self.assertEqual([line for line in shown.getvalue().splitlines() if line.startswith(STAMP)], [])
            self.assertEqual(len(json_output.getvalue().splitlines()), 1)
            json.loads(json_output.getvalue())

    def test_metrics_stay_lines_of_their_form(self) -> None:
        line = re.compile(r'(# (HELP|TYPE) \S+ .*|\w+(\{(\w+="([^"\\\n]|\\.)*",?)*\})? \S+)')
        for _text, _job in self.each():
            for shown in metrics.format_metrics().decode().rstrip("\n").split("\n"):
                self.assertIsNotNone(line.fullmatch(shown), shown[:200])

    def test_no_line_of_the_log_is_forged(self) -> None:
        form = logs.ReadableFormatter(logs.READABLE, defaults={"request_id": ""})
        for text in TEXTS:
            try:
                raise ValueError(text)
            except ValueError:
                raised = sys.exc_info()
            for info in (None, raised):
                record = logging.LogRecord("a", logging.ERROR, "", 1, "job=%s failed: %s", (make_row_id(), text), info)
                first, *others = form.format(record).splitlines()
                self.assertIn("job=", first)
                self.assertEqual([line for line in others if not line.startswith("    ")], [])
                self.assertIsNone(UNSEEN.search(form.format(record)))
