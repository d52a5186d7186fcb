"""The kombu transport `inference-redis`: kombu's own for Redis, except for the consumption of messages (`channel`).

Publishing, fanout, bindings and the data in the server are kombu's, so that both transports work side by side.
"""

from typing import Any

from kombu.transport import redis as stock

from inference.broker.kombu_redis.channel import RECHECK_S, Channel


class Poller(stock.MultiChannelPoller):
    """A poller that sends the due fetches of the channels before the event loop waits."""

    def on_poll_start(self) -> None:
        for channel in list(self._channels):
            if channel.is_due():
                self._register_BRPOP(channel)
            if channel.active_fanout_queues:
                self._register_LISTEN(channel)

    def maybe_restore_messages(self) -> None:
        """Settle what earlier channels could not, then restore messages as kombu does.

        It is called every ten seconds, also if no queue is consumed.
        """
        for channel in list(self._channels):
            channel.qos.try_to_settle()
        super().maybe_restore_messages()

    def on_readable(self, fileno: int) -> Any:
        channel, kind = self._fd_to_chan.get(fileno, (None, None))
        if kind == "BRPOP":  # read with or without credit: the fetch asked for no more than there was
            return channel._brpop_read()
        return super().on_readable(fileno)

    def get(self, callback: Any, timeout: float | None = None) -> None:
        super().get(callback, RECHECK_S if timeout is None else min(timeout, RECHECK_S))


class Transport(stock.Transport):
    Channel = Channel
    is_driven = False  # True with an event loop, which sends acknowledgements with its next turn

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cycle = Poller()

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        self.is_driven = True
        super().register_with_event_loop(connection, loop)
