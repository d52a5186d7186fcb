"""What is listed, as a file: streamed, complete, and harmless in a spreadsheet."""

from __future__ import annotations

import csv
import datetime
import io
import json
from typing import Any
from unittest.mock import patch

from django.contrib.auth.models import User
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from inference.admin.rendering import export
from inference.models import Job, Status
from tests.inference.test_admin import FORMULAS, INVISIBLE, AdminCase, make_job


class ExportTests(AdminCase):
    def get(self, form: str, **query: str) -> Any:
        return self.client.get(reverse("admin:inference_job_export", args=[form]), query)

    def read(self, form: str, **query: str) -> str:
        answer = self.get(form, **query)
        self.assertIn("attachment", answer.headers["Content-Disposition"])
        return bytes(answer.getvalue()).decode()

    def rows(self, **query: str) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(self.read("csv", **query), newline="")))

    def test_what_a_filter_finds_is_in_it_in_the_order_of_the_list(self) -> None:
        failed = [make_job(status=Status.FAILED, error_code="crashed", inputs="secret") for _ in range(5)]
        make_job(key_start="inf_AbCdEfGh")
        query = {"status__exact": "failed", "error_code": "crashed"}
        with patch.object(export, "CHUNK", 2):
            self.assertEqual([row["id"] for row in self.rows(**query)], [str(job.pk) for job in reversed(failed)])
        lines = [json.loads(line) for line in self.read("jsonl", **query).splitlines()]
        self.assertEqual([line["id"] for line in lines], [str(job.pk) for job in reversed(failed)])
        self.assertEqual(set(lines[0]), set(export.COLUMNS))
        self.assertNotIn("secret", self.read("csv") + self.read("jsonl"))
        self.assertEqual([row["key_start"] for row in self.rows(key_start="inf_AbCdEfGh")], ["inf_AbCdEfGh"])

    def test_a_list_in_parts_has_no_message_whatever_the_version_before_wrote(self) -> None:
        for published_at in (None, datetime.datetime(9000, 1, 1, tzinfo=datetime.UTC)):
            make_job(inputs=[], parts=2, published_at=published_at)
        self.assertEqual([row["published_at"] for row in self.rows()], ["", ""])

    def test_no_cell_is_a_formula(self) -> None:
        evil = [
            *FORMULAS,
            "=1+1",
            "+1",
            "-1",
            "@SUM(A1)",
            "\t=1",
            "\r=1",
            "  =1",
            '"=1',
            "=cmd|' /C calc'!A0",
            "\uff1d1+1",
            "\uff20SUM(A1)",
            "\u3000=1",
            "\xa0=1",
            *INVISIBLE,
        ]
        for text in evil:
            make_job(request_id=text, error_detail=f"=x {text}", status=Status.FAILED)
        rows = self.rows()
        self.assertEqual(len(rows), len(evil))
        for row in rows:
            for name, cell in row.items():
                for begun in (cell.lstrip(" "), cell.lstrip()):
                    self.assertFalse(
                        begun.startswith(("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff20")), (name, cell)
                    )

    def test_it_is_read_in_chunks_without_inputs_and_outputs(self) -> None:
        Job.objects.bulk_create(Job(model="embeddings", inputs="x") for _ in range(7))
        with patch.object(export, "CHUNK", 3), CaptureQueriesContext(connection) as queries:
            self.read("csv")
        of_jobs = [query["sql"] for query in queries if 'SELECT "inference_job"."id"' in query["sql"]]
        chunks = [sql for sql in of_jobs if "LIMIT 3" in sql]
        self.assertEqual(len(chunks), 3)
        for sql in of_jobs:
            self.assertNotIn('"inference_job"."output"', sql)

    def test_it_has_an_end_that_says_so(self) -> None:
        Job.objects.bulk_create(Job(model="embeddings", inputs="x") for _ in range(4))
        with patch.object(export, "CHUNK", 2), patch.object(export, "MOST", 4):
            self.assertEqual(len(self.rows()), 4)
            make_job()
            *rows, last = self.rows()
            *lines, end = self.read("jsonl").splitlines()
        self.assertEqual((len(rows), len(lines)), (4, 4))
        self.assertRegex(last["id"], "^INCOMPLETE: .* 4 jobs")
        self.assertEqual(json.loads(end), {"incomplete": last["id"].removeprefix("INCOMPLETE: ")})

    def test_one_that_breaks_says_so_last(self) -> None:
        Job.objects.bulk_create(Job(model="embeddings", inputs="x") for _ in range(4))
        for form, said in (("csv", "INCOMPLETE: "), ("jsonl", '{"incomplete":"')):
            with (
                patch.object(export, "CHUNK", 2),
                patch.object(export, "connections") as connections,
                self.assertLogs(export.logger, "ERROR"),
            ):
                connections.release_connection.side_effect = [None, OperationalError("secret")]
                last = self.read(form).splitlines()[-1]
            self.assertTrue(last.startswith(f"{said}the export failed after 2 jobs"), last)
            self.assertNotIn("secret", last)

    def test_who_may_not_see_jobs_exports_none(self) -> None:
        self.client.force_login(User.objects.create_user("clerk", is_staff=True))
        self.assertEqual(self.get("csv").status_code, 403)

    def test_a_form_or_a_filter_that_there_is_none_of(self) -> None:
        self.assertEqual(self.get("xlsx").status_code, 404)
        self.assertEqual(self.get("csv", worker="x").status_code, 302)
