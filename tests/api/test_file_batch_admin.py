"""The operator's pages of file batches and of files."""

from __future__ import annotations

import datetime
import tempfile
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.core.files.base import ContentFile
from django.db import connection
from django.test import TestCase, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from api.file_batches import files
from api.models import BatchStatus, FileBatch, FilePurpose, FileState, StoredFile
from inference import clock
from inference.admin.pages import dashboard
from inference.fields.ids import make_first_id
from inference.models import Bulk, Job, Status
from tests.conditions import ago

BATCHES = reverse("admin:api_filebatch_changelist")
FILES = reverse("admin:api_storedfile_changelist")
JOBS = reverse("admin:inference_job_changelist")


def page_of(row: FileBatch | StoredFile) -> str:
    return reverse(f"admin:api_{row._meta.model_name}_change", args=[row.pk])


def make_batch(**values: Any) -> FileBatch:
    """Make a batch with its bulk."""
    window = {"completion_window": "24h", "expires_at": clock.get_database_time() + datetime.timedelta(hours=24)}
    batch = FileBatch.objects.create(**{"endpoint": "/v1/embeddings", "model": "embeddings", **window, **values})
    Bulk.objects.create(pk=batch.pk, model=batch.model, total=batch.total, owner=batch.owner)
    return batch


def make_jobs(batch: FileBatch, count: int, **values: Any) -> None:
    Job.objects.bulk_create(
        Job(model="embeddings", inputs="a text", bulk_id=batch.pk, bulk_index=index, **values) for index in range(count)
    )


def make_running_batch(**values: Any) -> FileBatch:
    """Make a batch of 100 lines, which has 30 answers after two minutes, and 10 failures."""
    running = {"status": BatchStatus.IN_PROGRESS, "in_progress_at": ago(120), "total": 100, "lines_read": 60}
    batch = make_batch(**running, **values)
    make_jobs(batch, 30, status=Status.SUCCEEDED, finished_at=ago(60))
    make_jobs(batch, 7, status=Status.FAILED, error_code="invalid_input", finished_at=ago(60))
    make_jobs(batch, 3, status=Status.FAILED, error_code="crashed", finished_at=ago(60))
    make_jobs(batch, 20)
    return batch


class FileBatchAdminCase(TestCase):
    def setUp(self) -> None:
        self.user = get_user_model().objects.create_user("clerk", is_staff=True)
        self.permit("view_filebatch", "change_filebatch", "view_storedfile")
        self.client.force_login(self.user)
        folder = self.enterContext(tempfile.TemporaryDirectory())
        backend = {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": {"location": folder}}
        self.enterContext(override_settings(STORAGES={**settings.STORAGES, "files": backend}))

    def permit(self, *names: str) -> None:
        self.user.user_permissions.set(Permission.objects.filter(codename__in=names))

    def text(self, url: str, **query: str) -> str:
        answer = self.client.get(url, query)
        self.assertEqual(answer.status_code, 200, url)
        return answer.content.decode()

    def store(self, name: str = "requests.jsonl", content: bytes = b"{}\n", **values: Any) -> StoredFile:
        owner = values.pop("owner", self.user)
        return files.store_file(
            ContentFile(content), owner=owner, name=name, size=len(content), purpose=FilePurpose.BATCH, **values
        )


class ListTests(FileBatchAdminCase):
    def test_a_batch_that_runs_has_its_progress_its_rate_and_the_time_left(self) -> None:
        make_running_batch(owner=self.user)
        (batch,) = self.client.get(BATCHES).context["cl"].result_list
        progress = batch.progress
        self.assertEqual((progress.answered, progress.failed, progress.total), (30, 10, 100))
        self.assertAlmostEqual(progress.per_minute, 20, delta=2)
        self.assertAlmostEqual(progress.left_s, 180, delta=20)
        page = self.text(BATCHES)
        for shown in ("30 of 100", "in progress", "/v1/embeddings", "clerk", "3 min"):
            self.assertIn(shown, page)

    def test_a_batch_that_has_ended_has_the_counts_of_its_row_and_no_rate(self) -> None:
        make_batch(status=BatchStatus.COMPLETED, total=9, completed=8, failed=1, ended_at=ago())
        page = self.text(BATCHES)
        self.assertIn("8 of 9", page)
        self.assertInHTML('<td class="field-failed_now">1</td>', page)
        for empty in ("rate", "window_end"):
            self.assertInHTML(f'<td class="field-{empty}">-</td>', page)

    def test_an_empty_list_says_what_would_be_in_it(self) -> None:
        for url, words in (
            (BATCHES, "There are no file batches yet. A file batch "),
            (FILES, "There are no files yet. A file "),
        ):
            page = self.text(url)
            self.assertIn(words, page)
            self.assertNotIn("Show all", page)

    def test_a_refused_file_has_no_progress(self) -> None:
        make_batch(status=BatchStatus.FAILED)
        page = self.text(BATCHES)
        self.assertInHTML('<td class="field-answered">-</td>', page)
        self.assertNotIn("0 of 0", page)

    def test_as_many_queries_read_many_batches_as_one(self) -> None:
        def count_queries() -> int:
            with CaptureQueriesContext(connection) as queries:
                self.client.get(BATCHES)
            return len(queries)

        make_running_batch(owner=self.user)
        few = count_queries()
        for _ in range(5):
            make_running_batch(owner=self.user)
        self.assertEqual(count_queries(), few)

    def test_it_is_filtered_by_status_and_owner_and_found_by_its_id(self) -> None:
        mine, other = make_batch(owner=self.user), make_batch(status=BatchStatus.COMPLETED)
        for query, found in (
            ({"status__exact": "completed"}, [other]), ({"owner": str(self.user.pk)}, [mine]),
            ({"q": mine.public_id}, [mine]), ({"q": str(other.pk)}, [other]), ({"q": "nothing"}, []),
            ({}, [other, mine]),
        ):  # fmt: skip
            with self.subTest(query):
                self.assertEqual(list(self.client.get(BATCHES, query).context["cl"].result_list), found)


class PageTests(FileBatchAdminCase):
    def test_errors_are_grouped_by_code_with_links_to_the_jobs(self) -> None:
        batch = make_running_batch(metadata={"run": "nightly"})
        page = self.text(page_of(batch))
        for shown in ("30 of 100 lines answered, 10 failed", "lines a minute", "nightly"):
            self.assertIn(shown, page)
        link = f"{JOBS}?bulk={batch.pk}&amp;status__exact=failed&amp;error_code=invalid_input"
        self.assertIn(f'<a href="{link}">7</a>', page)
        self.permit("view_filebatch", "view_job")
        self.assertEqual(self.client.get(link.replace("&amp;", "&")).context["cl"].result_count, 7)

    def test_a_refused_file_is_shown_with_its_lines(self) -> None:
        refused = {"code": "invalid_json_line", "message": "<b>not JSON", "param": None, "line": 17}
        page = self.text(page_of(make_batch(status=BatchStatus.FAILED, errors=[refused])))
        for shown in ("invalid_json_line", "&lt;b&gt;not JSON", "17"):
            self.assertIn(shown, page)

    def test_its_files_are_linked(self) -> None:
        stored = self.store("<in>.jsonl")
        batch = make_batch(input_file=stored, status=BatchStatus.COMPLETED)
        download = reverse("admin:api_storedfile_download", args=[stored.pk])
        self.assertIn(f'<a href="{download}">&lt;in&gt;.jsonl</a>', self.text(page_of(batch)))


class CancelTests(FileBatchAdminCase):
    def cancel(self, batch: FileBatch) -> int:
        return self.client.post(reverse("admin:api_filebatch_cancel", args=[batch.pk])).status_code

    def status_of(self, batch: FileBatch) -> str:
        return FileBatch.objects.get(pk=batch.pk).status

    def test_the_button_cancels_a_batch_that_runs(self) -> None:
        batch = make_running_batch()
        self.assertIn("Cancel: ", self.text(page_of(batch)))
        self.assertEqual((self.cancel(batch), self.status_of(batch)), (302, BatchStatus.CANCELLING))
        self.assertNotIn("Cancel: ", self.text(page_of(batch)))

    def test_the_action_cancels_what_has_not_ended_and_says_what_it_left(self) -> None:
        running, ended = make_running_batch(), make_batch(status=BatchStatus.COMPLETED)
        chosen = {"action": "cancel", "_selected_action": [running.pk, ended.pk]}
        answer = self.client.post(BATCHES, chosen, follow=True)
        said = [str(message).split(",")[0].split(".")[0] for message in answer.context["messages"]]
        self.assertEqual(said, ["Cancelled: 1", "Not changed: 1"])
        self.assertEqual([self.status_of(running), self.status_of(ended)], ["cancelling", "completed"])

    def test_who_may_only_look_cancels_nothing(self) -> None:
        self.permit("view_filebatch")
        batch = make_running_batch()
        self.assertNotIn("Cancel: ", self.text(page_of(batch)))
        self.assertEqual(self.cancel(batch), 403)
        self.client.post(BATCHES, {"action": "cancel", "_selected_action": [batch.pk]})
        self.assertEqual(self.status_of(batch), BatchStatus.IN_PROGRESS)

    def test_a_link_cancels_nothing(self) -> None:
        batch = make_running_batch()
        self.assertEqual(self.client.get(reverse("admin:api_filebatch_cancel", args=[batch.pk])).status_code, 405)


class FileTests(FileBatchAdminCase):
    def download(self, file: StoredFile) -> Any:
        return self.client.get(reverse("admin:api_storedfile_download", args=[file.pk]))

    def test_complete_files_are_listed(self) -> None:
        stored = self.store(content=b"x" * 2048)
        StoredFile.objects.create(name="half.jsonl", purpose=FilePurpose.BATCH, state=FileState.RECEIVING)
        self.assertEqual(list(self.client.get(FILES).context["cl"].result_list), [stored])
        for page in (FILES, page_of(stored)):
            text = self.text(page)
            for shown in ("requests.jsonl", "clerk", "2.0 KiB", "batch"):
                self.assertIn(shown, text)

    def test_a_file_is_downloaded_as_it_was_stored(self) -> None:
        with self.assertLogs("api.admin.stored_files", "INFO"):  # with who did it
            answer = self.download(self.store('a "name"\r\n\u202e.jsonl', b"some content"))
        self.assertEqual(b"".join(answer.streaming_content), b"some content")
        self.assertEqual(answer["Content-Length"], "12")
        self.assertEqual(answer["Content-Type"], "application/octet-stream")
        self.assertTrue(answer["Content-Disposition"].startswith('attachment; filename="a \\"name\\"'))

    def test_content_that_is_gone_is_not_found(self) -> None:
        stored = self.store()
        StoredFile.get_storage().delete(stored.stored_as)
        self.assertContains(self.download(stored), "is not in the storage any more", status_code=404)

    def test_who_may_not_look_at_files_downloads_none(self) -> None:
        self.permit("view_filebatch")
        stored = self.store()
        for status, url in ((403, FILES), (403, page_of(stored))):
            self.assertEqual(self.client.get(url).status_code, status)
        self.assertEqual(self.download(stored).status_code, 403)


class AttentionTests(FileBatchAdminCase):
    def test_batches_that_nobody_works_on_are_linked_from_the_overview(self) -> None:
        Bulk.objects.create(pk=make_first_id(ago(90)), model="", total=1, is_open=True)
        rows = dashboard.list_attention_rows()
        self.assertIn(("FileBatchesWait", BATCHES), [(row["item"].code, row["place"]) for row in rows])


class RightsTests(FileBatchAdminCase):
    def test_without_rights_no_page_opens_and_none_is_in_the_navigation(self) -> None:
        batch = make_batch()
        self.assertIn(f'href="{BATCHES}"', self.text(reverse("admin:index")))
        self.permit()
        for url in (BATCHES, page_of(batch)):
            self.assertEqual(self.client.get(url).status_code, 403)
        index = self.text(reverse("admin:index"))
        self.assertNotIn(BATCHES, index)
        self.assertNotIn(FILES, index)
