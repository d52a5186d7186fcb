"""The connections of a channel to Redis."""

from collections.abc import Callable, Mapping
from typing import Any

import redis
from kombu import Connection
from kombu.utils.url import url_to_parts
from redis.connection import AbstractConnection

TCP_OPTIONS = ("socket_connect_timeout", "socket_keepalive")
OPTIONS = ("socket_timeout", "health_check_interval", *TCP_OPTIONS)
CONNECTIONS = 10  # of a channel at most


class WatchedConnection(AbstractConnection):
    """A connection that an event loop can watch.

    redis-py has no public name for the socket, which an event loop polls.
    """

    parser: Any
    unwatch: Callable[[], None] | None = None  # None while it is not watched

    def fileno(self) -> int:
        socket: Any = self._sock
        return int(socket.fileno())

    def set_unwatch_callback(self, unwatch: Callable[[], None]) -> None:
        """Note what to call once, while the socket is still open, as the connection ends."""
        self.unwatch = unwatch

    def set_parser(self, parser_class: Callable[..., Any]) -> None:
        def make_parser(**options: Any) -> Any:
            self.parser = parser_class(**options)
            return self.parser

        super().set_parser(make_parser)  # type: ignore[no-untyped-call]  # redis-py has no types here

    def set_invalidation_handler(self, handler: Callable[[Any], None]) -> None:
        self.parser.set_invalidation_push_handler(handler)

    def disconnect(self, *args: Any, **kwargs: Any) -> None:
        unwatch, self.unwatch = self.unwatch, None
        if unwatch:
            unwatch()
        super().disconnect(*args, **kwargs)  # type: ignore[no-untyped-call]  # redis-py has no types here


class TcpConnection(WatchedConnection, redis.Connection):
    pass


class TlsConnection(WatchedConnection, redis.SSLConnection):
    pass


class SocketConnection(WatchedConnection, redis.UnixDomainSocketConnection):
    pass


def make_client(connection: Connection, options: Mapping[str, Any]) -> redis.Redis:
    """Return a client for the address of a `kombu.Connection`, with those of the `OPTIONS` that are set.

    A connection has protocol 3: only that one has the server's notices of changed keys.
    """
    parameters = {name: options[name] for name in OPTIONS if options.get(name) is not None}
    database, user, password = connection.virtual_host, connection.userid, connection.password
    host = connection.hostname or ""
    if "://" in host:  # socket://PATH, for redis+socket://PATH
        parts = url_to_parts(host)
        database, user, password = parts.query.get("virtual_host", database), parts.username, parts.password
        parameters = {name: value for name, value in parameters.items() if name not in TCP_OPTIONS}
        parameters |= {"connection_class": SocketConnection, "path": f"/{parts.path}"}
    else:
        parameters |= {"host": host or "127.0.0.1", "port": connection.port or 6379}
        if connection.ssl or connection.transport_cls.endswith("rediss"):  # kombu knows only its own name for that
            options_of_tls = connection.ssl if isinstance(connection.ssl, Mapping) else {}
            parameters |= {"connection_class": TlsConnection, **options_of_tls}
    parameters = {"connection_class": TcpConnection, **parameters}
    number = str(database or "").removeprefix("/")
    parameters |= {"db": int(number or 0), "username": user, "password": password}
    pool = redis.ConnectionPool(max_connections=CONNECTIONS, protocol=3, **parameters)
    return redis.Redis(connection_pool=pool)
