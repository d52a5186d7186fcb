import contextlib
import os

from django.core.wsgi import get_wsgi_application

from api.requests.whole_bodies import WholeBodies
from project import garbage


def keep_on_one_core() -> None:
    """This process and the threads that it starts from now on: one at a time holds Python's lock anyway, and then finds
    its data in the core's cache, a fifth less CPU a request. Processes side by side choose different cores."""
    if hasattr(os, "sched_setaffinity"):  # Linux
        cores = sorted(os.sched_getaffinity(0))
        with contextlib.suppress(OSError):  # the cores may have changed meanwhile; it then runs anywhere
            os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]})


os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
os.environ.setdefault("DATABASE_POOL_SIZE", "32")  # hundreds of threads; PostgreSQL takes 100 connections by default
os.environ.setdefault("DATABASE_ANSWER_S", "4")  # a request is answered within 6 s, also when the database is not
keep_on_one_core()
application = WholeBodies(garbage.CollectBodies(get_wsgi_application()))
garbage.collect_less()
