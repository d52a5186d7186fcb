import os

from django.core.wsgi import get_wsgi_application

from api.wire import WholeBodies

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
os.environ.setdefault("DATABASE_POOL_SIZE", "32")  # hundreds of threads; PostgreSQL takes 100 connections by default
application = WholeBodies(get_wsgi_application())
