"""Signed notices that a job is finished, as Standard Webhooks describes them (https://www.standardwebhooks.com).

Off unless WEBHOOK_HOSTS names the hosts that may be called and WEBHOOK_SECRET signs. The row is the truth here too:
what is due is found by looking, so that no notice is lost however the job ended, and one may come twice.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import hashlib
import hmac
import http.client
import ipaddress
import logging
import re
import socket
import ssl
import time
from urllib.parse import SplitResult, urlsplit
from uuid import UUID

import orjson
from django.conf import settings
from django.db.models.functions import Now
from django.utils import timezone

from inference.errors import InvalidInput
from inference.models import TERMINAL, Job, Webhook, WebhookState

logger = logging.getLogger(__name__)

SECRET_PREFIX = "whsec_"  # noqa: S105 - a prefix
DELAYS_S = (
    5,
    300,
    1800,
    7200,
    18_000,
    36_000,
    50_400,
)  # after each failure; the standard's own schedule, then given up
VISIBLE = re.compile(r"[\x21-\x7e]{1,500}")
LEASE_S = 60  # for one attempt: then it is due again
TIMEOUT_S = 15.0
AT_ONCE = 200


class NotDelivered(Exception):
    """Why an attempt failed; what the operator may read."""


def check(url: str) -> None:
    """Raises `InvalidInput` for an address that may not be called."""
    if not settings.WEBHOOK_HOSTS:
        raise _invalid("webhooks are not configured here; leave it out and poll the job")
    try:
        parts = urlsplit(url if VISIBLE.fullmatch(url) else "")
        _ = parts.port
    except ValueError:
        raise _invalid("must be an address such as https://example.com/hook") from None
    if parts.scheme not in _schemes() or not parts.hostname or parts.username:
        raise _invalid(
            f"must be an address of at most 500 characters that begins with {_schemes()[-1]}://, no user in it"
        )
    if parts.hostname not in settings.WEBHOOK_HOSTS:
        raise _invalid(f"the host {parts.hostname:.100} is not among those that may be called")


def _schemes() -> tuple[str, ...]:
    return ("http", "https") if settings.WEBHOOK_ALLOW_PRIVATE else ("https",)


def _invalid(message: str) -> InvalidInput:
    return InvalidInput(f"webhook: {message}.", field="webhook")


def register(job: Job, url: str) -> None:
    Webhook.objects.get_or_create(job=job, defaults={"url": url})


def take_due() -> list[UUID]:
    """Notices to be sent now, leased to the caller."""
    due = Webhook.objects.filter(state=WebhookState.PENDING, due_at__lte=Now(), job__status__in=TERMINAL)
    ids = list(due.order_by("due_at").values_list("pk", flat=True)[:AT_ONCE])
    lease = Now() + datetime.timedelta(seconds=LEASE_S)
    pending = Webhook.objects.filter(state=WebhookState.PENDING, due_at__lte=Now())
    return [key for key in ids if pending.filter(pk=key).update(due_at=lease)]


def deliver(key: UUID) -> None:
    """One attempt. A failed one is due again later, until the schedule ends."""
    webhook = Webhook.objects.select_related("job").filter(pk=key, state=WebhookState.PENDING).first()
    if webhook is None:
        return
    webhook.attempts += 1
    try:
        _post(webhook)
    except NotDelivered as error:
        _postpone(webhook, str(error))
    else:
        webhook.state, webhook.last_error = WebhookState.DELIVERED, ""
        logger.info("webhook=%s job=%s delivered", webhook.pk, webhook.job_id)
    webhook.save(update_fields=["state", "attempts", "due_at", "last_error"])


def _postpone(webhook: Webhook, why: str) -> None:
    webhook.last_error = why[:300]
    if webhook.attempts > len(DELAYS_S):
        webhook.state = WebhookState.GIVEN_UP
        logger.error("webhook=%s job=%s given up: %s", webhook.pk, webhook.job_id, why)
        return
    delay_s = DELAYS_S[webhook.attempts - 1]
    webhook.due_at = timezone.now() + datetime.timedelta(seconds=delay_s)
    logger.warning("webhook=%s job=%s not delivered, again in %d s: %s", webhook.pk, webhook.job_id, delay_s, why)


def payload(job: Job) -> bytes:
    """Without the output, which may be large: the client fetches it, with its key."""
    return orjson.dumps(
        {
            "type": "job.finished",
            "timestamp": job.finished_at or timezone.now(),
            "data": {
                "id": job.id,
                "model": job.model,
                "status": job.status,
                "error": {"code": job.error_code, "detail": job.error_detail} if job.error_code else None,
                "request_id": job.request_id,
            },
        }
    )


def sign(identifier: str, timestamp: int, body: bytes) -> str:
    digest = hmac.new(secret(), f"{identifier}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def secret() -> bytes:
    """Raises `ValueError` for a secret that is not `whsec_` and base64 of 24 to 64 bytes."""
    text = settings.WEBHOOK_SECRET
    try:
        key = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error as error:
        raise ValueError("WEBHOOK_SECRET is not base64") from error
    if not text.startswith(SECRET_PREFIX) or not 24 <= len(key) <= 64:
        raise ValueError(f"WEBHOOK_SECRET must be {SECRET_PREFIX} and base64 of 24 to 64 bytes")
    return key


def _post(webhook: Webhook) -> None:
    parts = urlsplit(webhook.url)
    if parts.hostname not in settings.WEBHOOK_HOSTS:
        raise NotDelivered(f"the host {parts.hostname} may not be called any more")
    body, now = payload(webhook.job), int(time.time())
    headers = {
        "Content-Type": "application/json",
        "webhook-id": str(webhook.pk),
        "webhook-timestamp": str(now),
        "webhook-signature": sign(str(webhook.pk), now, body),
    }
    connection = _connection(parts)
    try:
        connection.request("POST", parts._replace(scheme="", netloc="", fragment="").geturl() or "/", body, headers)
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        raise NotDelivered(f"{type(error).__name__}: {error}") from error
    finally:
        connection.close()
    if not 200 <= status < 300:  # a redirect is a failure: it could lead anywhere
        raise NotDelivered(f"answered {status}")


def _connection(parts: SplitResult) -> http.client.HTTPConnection:
    """To an address that was resolved once and looked at: a second look-up could give another."""
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connected = socket.create_connection((_resolve(host, port), port), timeout=TIMEOUT_S)
        if parts.scheme == "https":
            connected = ssl.create_default_context().wrap_socket(connected, server_hostname=host)
    except OSError as error:
        raise NotDelivered(f"{type(error).__name__}: {error}") from error
    connection.sock = connected
    return connection


def _resolve(host: str, port: int) -> str:
    addresses = {str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    for address in sorted(addresses):
        if not settings.WEBHOOK_ALLOW_PRIVATE and not ipaddress.ip_address(address).is_global:
            raise NotDelivered(f"{host} resolves to {address}, which is not a public address")
    return min(addresses)
