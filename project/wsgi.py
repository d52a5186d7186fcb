import gc
import os

gc.disable()  # until everything is loaded

import django  # noqa: E402 - the collector is off

from api.server.unread_body_reader import UnreadBodyReader  # noqa: E402 - the collector is off
from inference.catalog import lookup  # noqa: E402 - the collector is off
from project import stalled_clients, stop_signal  # noqa: E402 - the collector is off


def collect_less_garbage() -> None:
    """Collect garbage rarely, and not among the objects that were loaded at the start, which stay.

    Requests make no reference cycles, however large they are. This saves a quarter of the CPU of a bulk of ten thousand
    lines.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


def make_application() -> UnreadBodyReader:
    django.setup(set_prefix=False)
    from inference import process_resources  # Django's models can be imported now
    from project.handler import Handler

    process_resources.current.figures.start()
    stop_signal.call_when_stopped(process_resources.current.close)
    return UnreadBodyReader(Handler())


os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
# For hundreds of threads: PostgreSQL takes 100 connections by default.
os.environ.setdefault("DATABASE_POOL_SIZE", "32")
# A request is answered within 6 s, also if the database does not answer.
os.environ.setdefault("DATABASE_ANSWER_S", "4")
application = make_application()
lookup.start_follower()
stalled_clients.set_tcp_timeouts()
collect_less_garbage()
