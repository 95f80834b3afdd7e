"""The app: finds the tasks of all installed apps when Django is ready."""

from __future__ import annotations

from django.apps import AppConfig

from .registry import discover


class RedisQueueConfig(AppConfig):
    """``INSTALLED_APPS = [..., "django_redisqueue"]``."""

    name = "django_redisqueue"
    verbose_name = "Redis queue"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        discover()
