import os
import sys

from django.core.wsgi import get_wsgi_application

from api.wire import ChunkedBodies

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
os.environ.setdefault("DATABASE_POOL_SIZE", "32")  # hundreds of threads; PostgreSQL takes 100 connections by default
# Hundreds of threads that each compute for a millisecond: taking turns every 5 ms only costs turns.
sys.setswitchinterval(0.05)
application = ChunkedBodies(get_wsgi_application())
