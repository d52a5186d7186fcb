"""A Django project of a user's own, as small as it can be. It shares no database, broker or setting with the service.

python -m django runserver 8080 --settings examples.shop.settings
"""

import os

SECRET_KEY = os.environ.get("SECRET_KEY", "for trying it out")
DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "examples.shop.urls"
MIDDLEWARE = ["django.middleware.common.CommonMiddleware", "django.middleware.csrf.CsrfViewMiddleware"]

INFERENCE_URL = os.environ.get("INFERENCE_URL", "http://127.0.0.1:8000")
INFERENCE_API_KEY = os.environ.get("INFERENCE_API_KEY", "")
