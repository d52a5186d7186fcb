"""The service's settings, and an app beside it: nothing in the folder `project` is changed.

DJANGO_SETTINGS_MODULE=examples.notes.settings make run
"""

from project.settings import *

INSTALLED_APPS = [*INSTALLED_APPS, "examples.notes"]
MIDDLEWARE = [*MIDDLEWARE, "examples.notes.middleware.Visits"]
ROOT_URLCONF = "examples.notes.urls"
LOGIN_URL = "admin:login"
