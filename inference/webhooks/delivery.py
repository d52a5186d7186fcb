"""Signed notices that a job is finished, as Standard Webhooks describes them (https://www.standardwebhooks.com).

They are off unless WEBHOOK_HOSTS names the hosts that may be called. WEBHOOK_SECRET signs them. The row is the truth
here, too: notices that are due are found by a query, so that no notice is lost however the job ended, and a notice may
come twice. `manage.py deliver_webhooks` leases the row of each notice before it delivers it, and may run on any number
of hosts.
"""

import base64
import binascii
import datetime
import hashlib
import hmac
import logging
import re
from collections import Counter
from urllib.parse import urlsplit

import orjson
from django.conf import settings
from django.db.models import Exists, OuterRef, Q
from django.db.models.functions import Now

from inference import clock, row_locks
from inference.errors import InvalidInput
from inference.fields.json_field import escape_for_database
from inference.models import TERMINAL, Job, Webhook, WebhookState
from inference.webhooks import outbound_post
from inference.webhooks.outbound_post import Resolver

logger = logging.getLogger(__name__)

SECRET_PREFIX = "whsec_"  # noqa: S105 - a prefix
# Seconds after each failure, by the standard's own schedule. After that the notice is given up.
DELAYS_S = (5, 300, 1800, 7200, 18_000, 36_000, 50_400)
LONGEST = datetime.timedelta(seconds=max(DELAYS_S))
VISIBLE = re.compile(r"[\x21-\x7e]{1,500}")
ATTEMPT_S = 15.0  # for all steps of one attempt
LEASE_S = 4 * ATTEMPT_S  # after which a notice is due again, as the process that leased it has died
LEASE = datetime.timedelta(seconds=LEASE_S)
RENEWED = 500  # rows that one statement changes


def check_url(url: str) -> None:
    """Check the address of a webhook. Raises `InvalidInput` for an address that may not be called."""
    if not settings.WEBHOOK_HOSTS:
        raise _make_invalid_webhook_error("webhooks are not configured here; leave it out and poll the job")
    try:
        parts = urlsplit(url if VISIBLE.fullmatch(url) else "")
        _ = parts.port
    except ValueError:
        raise _make_invalid_webhook_error("must be an address such as https://example.com/hook") from None
    if parts.scheme not in _list_schemes() or not parts.hostname or "@" in parts.netloc:
        schemes = " or ".join(f"{scheme}://" for scheme in _list_schemes())
        raise _make_invalid_webhook_error(
            f"must be an address of at most 500 characters that begins with {schemes}, without user:password@"
        )
    if parts.hostname not in settings.WEBHOOK_HOSTS:
        raise _make_invalid_webhook_error(f"the host {parts.hostname:.100} is not among those that may be called")


def _list_schemes() -> tuple[str, ...]:
    return ("http", "https") if settings.WEBHOOK_ALLOW_PRIVATE else ("https",)


def _make_invalid_webhook_error(message: str) -> InvalidInput:
    return InvalidInput(f"webhook: {message}.", field="webhook")


def register_webhook(job: Job, url: str) -> None:
    Webhook.objects.get_or_create(job=job, defaults={"url": url})


def lease_due_webhooks(at_most: int, busy: Counter[str] | None = None, *, of_one_host: int = 4) -> list[Webhook]:
    """Return notices to be sent now, with their jobs, leased to the caller for `LEASE_S`.

    `busy` counts the notices under way, by host. A host that does not answer holds at most `of_one_host` threads of the
    caller, and not the threads of the other hosts.
    """
    pending = Webhook.objects.filter(state=WebhookState.PENDING, due_at__lte=Now())
    ended = Job.objects.filter(pk=OuterRef("job"), status__in=TERMINAL)
    due = pending.filter(Exists(ended)).order_by("due_at")  # joined, SQLite would read all ended jobs first
    hosts = Counter(busy or ())
    for host in (host for host, count in hosts.items() if count >= of_one_host):
        due = due.exclude(url__iregex=rf"^https?://{re.escape(host)}([:/?#]|$)")
    lease = Now() + LEASE
    taken = []
    for key, url in list(due.values_list("pk", "url")[:at_most]):
        hosts[parse_host(url)] += 1
        if hosts[parse_host(url)] <= of_one_host and pending.filter(pk=key).update(due_at=lease):
            taken.append(key)
    found = Webhook.objects.filter(pk__in=taken).select_related("job").defer("job__inputs", "job__output")
    return list(found.order_by("pk"))


def hasten_future_webhooks() -> bool:
    """Make the notices due now that would wait too long, as the database's clock was set back.

    Return True if there may be more of them.
    """
    later = Webhook.objects.filter(state=WebhookState.PENDING, due_at__gt=Now() + 2 * LEASE)
    later = later.filter(Q(attempts=0) | Q(due_at__gt=Now() + LONGEST + 2 * LEASE))
    keys = list(later.values_list("pk", flat=True)[:RENEWED])
    row_locks.update_rows(later.filter(pk__in=keys), due_at=Now())
    return len(keys) == RENEWED


def parse_host(url: str) -> str:
    """Return the host of an address. It is empty for a text that is no address, as other programs may write rows."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def deliver_webhook(webhook: Webhook, resolver: Resolver) -> None:
    """Make one attempt to deliver a notice, which the caller has leased.

    After a failure the notice is due again later, until the schedule ends.
    """
    leased_until = webhook.due_at
    webhook.attempts += 1
    try:
        _post(webhook, resolver)
    except outbound_post.NotSent as error:
        _postpone(webhook, str(error))
    else:
        webhook.state, webhook.last_error = WebhookState.DELIVERED, ""
        logger.info("webhook=%s job=%s delivered", webhook.pk, webhook.job_id)
    outcome = {name: getattr(webhook, name) for name in ("state", "attempts", "due_at", "last_error")}
    Webhook.objects.filter(pk=webhook.pk, due_at=leased_until).update(**outcome)


def _postpone(webhook: Webhook, why: str) -> None:
    webhook.last_error = escape_for_database(why)[:300]
    if webhook.attempts > len(DELAYS_S):
        webhook.state = WebhookState.GIVEN_UP
        logger.error("webhook=%s job=%s given up: %s", webhook.pk, webhook.job_id, why)
        return
    delay_s = DELAYS_S[webhook.attempts - 1]
    webhook.due_at = Now() + datetime.timedelta(seconds=delay_s)
    logger.warning("webhook=%s job=%s not delivered, again in %d s: %s", webhook.pk, webhook.job_id, delay_s, why)


def make_webhook_body(job: Job) -> bytes:
    """Return the body of a notice.

    It is without the output, which may be large: the client fetches the output with its API key.
    """
    return orjson.dumps(
        {
            "type": "job.finished",
            "timestamp": job.finished_at or clock.get_database_time(),
            "data": {
                "id": job.id,
                "model": job.model,
                "status": job.status,
                "error": {"code": job.error_code, "detail": job.public_detail} if job.error_code else None,
                "request_id": job.request_id,
            },
        }
    )


def sign_notice(identifier: str, timestamp: int, body: bytes) -> str:
    digest = hmac.new(read_signing_key(), f"{identifier}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def read_signing_key() -> bytes:
    """Return the key that signs notices.

    Raises `ValueError` if WEBHOOK_SECRET is not `whsec_` and base64 of 24 to 64 bytes.
    """
    text = settings.WEBHOOK_SECRET
    try:
        key = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error as error:
        raise ValueError("WEBHOOK_SECRET is not base64") from error
    if not text.startswith(SECRET_PREFIX) or not 24 <= len(key) <= 64:
        raise ValueError(f"WEBHOOK_SECRET must be {SECRET_PREFIX} and base64 of 24 to 64 bytes")
    return key


def _post(webhook: Webhook, resolver: Resolver) -> None:
    """Send a notice. Raises `NotSent`, also if the answer is no success."""
    host = parse_host(webhook.url)
    if host not in settings.WEBHOOK_HOSTS:
        raise outbound_post.NotSent(f"the host {host} may no longer be called")
    body, now = make_webhook_body(webhook.job), int(clock.estimate_now_s())
    headers = {
        "Content-Type": "application/json",
        "webhook-id": str(webhook.pk),
        "webhook-timestamp": str(now),
        "webhook-signature": sign_notice(str(webhook.pk), now, body),
    }
    status = outbound_post.post_checked(
        webhook.url, body, headers, resolver, limit_s=ATTEMPT_S, private=settings.WEBHOOK_ALLOW_PRIVATE
    )
    if not 200 <= status < 300:  # a redirect is a failure: it could lead anywhere
        raise outbound_post.NotSent(f"answered {status}")
