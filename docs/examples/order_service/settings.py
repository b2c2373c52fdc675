"""Settings of Django. DATABASE_URL: where `eventstore project` writes the table of orders."""

from __future__ import annotations

import os
from urllib.parse import unquote, urlsplit

DATABASE_URL = os.environ.get("DATABASE_URL", "sqlite:read.db")
_at = urlsplit(DATABASE_URL)
if _at.scheme == "sqlite":
    _database = {"ENGINE": "django.db.backends.sqlite3", "NAME": _at.path}
else:
    _database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _at.path.lstrip("/"),
        "USER": unquote(_at.username or ""),
        "PASSWORD": unquote(_at.password or ""),
        "HOST": _at.hostname,
        "PORT": _at.port,
        "CONN_MAX_AGE": 60,
    }
DATABASES = {"default": _database}
SECRET_KEY = os.environ.get("DJANGO_SECRET_KEY", "of your own")
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = ["order_service"]
MIDDLEWARE = ["order_service.views.answer_errors"]
ROOT_URLCONF = "order_service.views"
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "UTC"
