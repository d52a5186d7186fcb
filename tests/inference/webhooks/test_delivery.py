import base64
import contextlib
import datetime
import hashlib
import hmac
import http.server
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from unittest.mock import patch
from uuid import UUID

from django.db.models.functions import Now
from django.test import TestCase, override_settings

from inference import checks
from inference.errors import InvalidInput
from inference.models import Job, Status, Webhook, WebhookState
from inference.webhooks import delivery
from inference.webhooks.outbound_post import Resolver
from tests.conditions import PATIENCE_S, ago

A_SECOND = datetime.timedelta(seconds=1)
A_SECOND_AGO = Now() - A_SECOND  # by the database's clock, which may know milliseconds only
SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()


class Receiver(http.server.BaseHTTPRequestHandler):
    """A client's server: notes what it gets, answers what it is told."""

    status = 204
    got: list[tuple[dict[str, str], bytes]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        type(self).got.append(({name.lower(): value for name, value in self.headers.items()}, body))
        self.send_response(self.status)
        self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Quiet."""


@contextlib.contextmanager
def receiving(status: int = 204) -> Iterator[str]:
    Receiver.status, Receiver.got = status, []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook?a=b"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@override_settings(WEBHOOK_HOSTS=["127.0.0.1", "hooks.example"], WEBHOOK_SECRET=SECRET, WEBHOOK_ALLOW_PRIVATE=True)
class DeliveryTests(TestCase):
    def setUp(self) -> None:
        self.enterContext(patch.object(delivery, "ATTEMPT_S", PATIENCE_S))

    def hook(self, url: str, status: str = Status.SUCCEEDED) -> Webhook:
        job = Job.objects.create(model="echo", inputs="x", status=status, request_id="r1", output="secret output")
        delivery.register_webhook(job, url)
        Webhook.objects.filter(job=job).update(due_at=A_SECOND_AGO)
        return Webhook.objects.get(job=job)

    def deliver(self, hook: Webhook) -> Webhook:
        """As if it were due now."""
        Webhook.objects.filter(pk=hook.pk).update(due_at=A_SECOND_AGO)
        for taken in delivery.lease_due_webhooks(8):
            delivery.deliver_webhook(taken, Resolver())
        hook.refresh_from_db()
        return hook

    def due(self) -> list[UUID]:
        return [hook.pk for hook in delivery.lease_due_webhooks(8)]

    def test_a_notice_is_signed_and_has_the_outcome_without_the_output(self) -> None:
        with receiving() as url:
            hook = self.deliver(self.hook(url))
        self.assertEqual((hook.state, hook.attempts), (WebhookState.DELIVERED, 1))
        ((headers, body),) = Receiver.got
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        signature = base64.b64encode(hmac.new(b"k" * 32, signed, hashlib.sha256).digest()).decode()
        self.assertEqual(headers["webhook-signature"], f"v1,{signature}")
        notice = json.loads(body)
        self.assertEqual((notice["type"], notice["data"]["id"]), ("job.finished", str(hook.job_id)))
        self.assertEqual((notice["data"]["status"], notice["data"]["request_id"]), ("succeeded", "r1"))
        self.assertNotIn(b"secret output", body)

    def test_a_notice_does_not_wait_for_as_much_longer_as_the_clock_was_set_back(self) -> None:
        hook = self.hook("https://hooks.example/a")
        for attempts, due_in, is_due in (
            (0, datetime.timedelta(seconds=delivery.LEASE_S), False), (0, datetime.timedelta(hours=1), True),
            (7, datetime.timedelta(hours=1), False), (7, delivery.LONGEST + datetime.timedelta(seconds=2), False),
            (7, datetime.timedelta(days=2), True),
        ):  # fmt: skip
            with self.subTest(attempts=attempts, due_in=due_in):
                Webhook.objects.update(attempts=attempts, due_at=Now() + due_in)
                delivery.hasten_future_webhooks()
                self.assertEqual(self.due(), [hook.pk] if is_due else [])

    def test_of_many_notices_that_would_wait_a_few_are_renewed_at_a_time(self) -> None:
        hooks = {self.hook(f"https://{name}.example/").pk for name in "abc"}
        Webhook.objects.update(due_at=Now() + datetime.timedelta(hours=1))
        with patch.object(delivery, "RENEWED", 2):
            self.assertEqual([delivery.hasten_future_webhooks() for _ in range(2)], [True, False])
        self.assertEqual({*self.due()}, hooks)

    def test_a_redirect_is_a_failure_and_not_followed(self) -> None:
        with receiving(302) as url:
            hook = self.deliver(self.hook(url))
        self.assertEqual((hook.state, hook.last_error, len(Receiver.got)), (WebhookState.PENDING, "answered 302", 1))

    def test_failures_are_tried_again_later_and_later_and_then_given_up(self) -> None:
        with receiving(500) as url:
            hook = self.hook(url)
            for delay_s in delivery.DELAYS_S:
                before = ago()
                hook = self.deliver(hook)
                later = hook.due_at - datetime.timedelta(seconds=delay_s)
                self.assertTrue(before - A_SECOND < later < ago() + A_SECOND, delay_s)
                self.assertEqual(hook.state, WebhookState.PENDING)
            self.assertEqual(self.deliver(hook).state, WebhookState.GIVEN_UP)
        self.assertEqual(len(Receiver.got), len(delivery.DELAYS_S) + 1)

    def test_nobody_there_is_a_failure(self) -> None:
        hook = self.deliver(self.hook("http://127.0.0.1:1/"))
        self.assertIn("ConnectionRefusedError", hook.last_error)

    def test_a_delivered_notice_is_not_sent_again(self) -> None:
        with receiving() as url:
            hook = self.deliver(self.hook(url))
            self.deliver(hook)
        self.assertEqual(len(Receiver.got), 1)

    def test_only_notices_of_finished_jobs_are_due_and_one_taker_has_them(self) -> None:
        finished, waiting = self.hook("http://127.0.0.1/"), self.hook("http://127.0.0.1/", Status.QUEUED)
        self.assertEqual(self.due(), [finished.pk])
        self.assertEqual(self.due(), [])
        Job.objects.filter(pk=waiting.job_id).update(status=Status.CANCELLED)
        self.assertEqual(self.due(), [waiting.pk])

    def test_a_taken_notice_that_was_never_sent_is_due_again(self) -> None:
        hook = self.hook("http://127.0.0.1/")
        self.assertEqual(self.due(), [hook.pk])
        Webhook.objects.update(due_at=A_SECOND_AGO)
        self.assertEqual(self.due(), [hook.pk])

    def test_who_comes_after_its_lease_changes_nothing(self) -> None:
        with receiving(500) as url:
            self.hook(url)
            (late,) = delivery.lease_due_webhooks(8)
            Webhook.objects.update(due_at=A_SECOND_AGO)
            (timely,) = delivery.lease_due_webhooks(8)
            delivery.deliver_webhook(late, Resolver())
            self.assertEqual(Webhook.objects.get().attempts, 0)
            delivery.deliver_webhook(timely, Resolver())
        self.assertEqual(Webhook.objects.get().attempts, 1)

    def test_a_host_that_is_busy_leaves_threads_to_the_others(self) -> None:
        for _ in range(6):
            self.hook("http://127.0.0.1:1/slow")
        quick = self.hook("http://hooks.example/")
        slow = delivery.lease_due_webhooks(8)
        self.assertEqual([delivery.parse_host(hook.url) for hook in slow], ["127.0.0.1"] * 4 + ["hooks.example"])
        Webhook.objects.filter(pk=quick.pk).update(due_at=A_SECOND_AGO)
        taken = delivery.lease_due_webhooks(1, Counter({"127.0.0.1": 4}))
        self.assertEqual([hook.pk for hook in taken], [quick.pk])

    def test_no_more_are_taken_than_requested(self) -> None:
        for _ in range(3):
            self.hook("http://127.0.0.1/")
        self.assertEqual((len(delivery.lease_due_webhooks(2)), len(delivery.lease_due_webhooks(2))), (2, 1))

    @override_settings(WEBHOOK_ALLOW_PRIVATE=False)
    def test_a_public_name_that_leads_inside_is_not_called(self) -> None:
        inside = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", 443))]
        with patch.object(socket, "getaddrinfo", return_value=inside):
            hook = self.deliver(self.hook("https://hooks.example/"))
        self.assertIn("169.254.169.254, which is not a public address", hook.last_error)

    @override_settings(WEBHOOK_ALLOW_PRIVATE=False)
    def test_the_address_that_was_looked_at_is_the_one_that_is_called(self) -> None:
        public = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 443)) for host in ("93.184.216.34", "1.1.1.1")]
        with (
            patch.object(socket, "getaddrinfo", return_value=public),
            patch.object(socket, "create_connection", side_effect=TimeoutError("no answer")) as connect,
        ):
            self.deliver(self.hook("https://hooks.example/"))
        tried = [call.args[0] for call in connect.call_args_list]
        self.assertEqual(tried, [("93.184.216.34", 443), ("1.1.1.1", 443)])

    @override_settings(WEBHOOK_HOSTS=["other.example"])
    def test_a_host_that_may_no_longer_be_called_is_not(self) -> None:
        self.assertIn("may no longer be called", self.deliver(self.hook("http://127.0.0.1/")).last_error)


NOT_TAKEN = (
    "http://hooks.example/",
    "https://evil.example/",
    "https://hooks.example@evil.example/",
    "https://user:pw@hooks.example/",
    "https://:pw@hooks.example/",
    "https://@hooks.example/",
    "https://hooks.example:99999/",
    "ftp://hooks.example/",
    "hooks.example",
    "https://hooks.example/\r\nX: 1",
    "https://hooks.example/" + "a" * 500,
    "https://[::1",
    "",
)


@override_settings(WEBHOOK_HOSTS=["hooks.example"], WEBHOOK_SECRET=SECRET)
class CheckTests(TestCase):
    def test_only_https_to_listed_hosts_is_taken(self) -> None:
        delivery.check_url("https://hooks.example/a?b=c")
        delivery.check_url("https://hooks.example:8443/")
        for url in NOT_TAKEN:
            with self.subTest(url), self.assertRaises(InvalidInput) as refused:
                delivery.check_url(url)
            self.assertEqual(refused.exception.field, "webhook")

    @override_settings(WEBHOOK_HOSTS=[])
    def test_off_unless_configured(self) -> None:
        with self.assertRaisesRegex(InvalidInput, "not configured here"):
            delivery.check_url("https://hooks.example/")

    def test_a_bad_secret_is_found_by_the_checks(self) -> None:
        self.assertEqual(checks.check_webhook_secret(None), [])
        no_prefix, no_base64 = SECRET.removeprefix("whsec_"), f"{SECRET[:-4]}?{SECRET[-4:]}"
        for secret in ("", "whsec_", "whsec_????", no_base64, no_prefix):
            with self.subTest(secret), override_settings(WEBHOOK_SECRET=secret):
                (error,) = checks.check_webhook_secret(None)
                self.assertIn("WEBHOOK_SECRET", error.msg)
