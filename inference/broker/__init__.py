"""The broker: the embedded server, the sending of messages, and the kombu transport that consumes in bulk."""

from kombu.transport import TRANSPORT_ALIASES

TRANSPORT_ALIASES |= {
    f"inference-{scheme}": "inference.broker.kombu_redis.transport:Transport" for scheme in ("redis", "rediss")
}
