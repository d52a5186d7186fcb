import gc

collects = gc.isenabled()
gc.disable()  # imported objects stay: looking through them again and again is a seventh of the time of the imports
from project.celery import app as celery_app  # noqa: E402 - the collector is off

gc.freeze()
if collects:
    gc.enable()

__all__ = ["celery_app"]
