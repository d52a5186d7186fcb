import os

from django.core.wsgi import get_wsgi_application

from api.wire import ChunkedBodies

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
os.environ.setdefault("DATABASE_POOL_SIZE", "32")  # hundreds of threads; PostgreSQL takes 100 connections by default
application = ChunkedBodies(get_wsgi_application())
