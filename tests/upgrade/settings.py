"""Settings with which both the previous version and this one can be started: see site.py."""

import json
import os

SECRET_KEY = "only for tests"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django_redisqueue",
    "tests.upgrade",
]
# there are no pages here
SILENCED_SYSTEM_CHECKS = ["admin.E403", "admin.E408", "admin.E409", "admin.E410"]
DATABASES = {"default": json.loads(os.environ["UPGRADE_DATABASE"])}
REDISQUEUE = json.loads(os.environ["UPGRADE_SETTINGS"])
