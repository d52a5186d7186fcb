import gc

collects = gc.isenabled()
gc.disable()  # what is imported stays: to look through it, again and again, is a seventh of the time that this takes
from project.celery import app as celery_app  # noqa: E402

gc.freeze()
if collects:
    gc.enable()

__all__ = ["celery_app"]
