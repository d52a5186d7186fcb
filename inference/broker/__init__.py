"""The broker: the embedded server, how messages are sent, and the kombu transport that consumes in bulk."""

from kombu.transport import TRANSPORT_ALIASES

TRANSPORT_ALIASES |= {
    f"inference-{scheme}": "inference.broker.kombu_redis.transport:Transport" for scheme in ("redis", "rediss")
}
