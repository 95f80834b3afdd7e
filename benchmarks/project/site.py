"""The benchmarks' project with an admin, for measuring the dashboard."""

from .settings import *  # noqa: F403
from .settings import INSTALLED_APPS as PLAIN

INSTALLED_APPS = [
    "django.contrib.admin", "django.contrib.messages", "django.contrib.sessions",
    "django.contrib.staticfiles", *PLAIN,
]  # fmt: skip
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
STATIC_URL = "static/"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "benchmarks.project.addresses"
