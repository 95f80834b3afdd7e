"""The app: finds the tasks of all installed apps when Django is ready, and registers its checks."""

from __future__ import annotations

import sys
from importlib import import_module

from django.apps import AppConfig
from django.core import checks

from .checks import check_database, check_network, check_settings, check_urls
from .client.registry import discover
from .core.text import enable_loggers
from .dashboard import bulk  # noqa: F401 - defines a task of this package, which workers run


class RedisQueueConfig(AppConfig):
    """``INSTALLED_APPS = [..., "django_redisqueue"]``."""

    name = "django_redisqueue"
    verbose_name = "Redis queue"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        enable_loggers()
        modules = discover()
        # A project that uses Django's own tasks has imported one of these.
        if "django.tasks" in sys.modules or "django_tasks" in sys.modules:
            import_module(f"{self.name}.backend.registration").register_module_tasks(modules)
        import_module(f"{self.name}.wiring")  # needs models, which cannot be loaded earlier
        checks.register(check_settings, "redisqueue")
        checks.register(check_urls, "redisqueue")
        checks.register(check_network, "redisqueue", deploy=True)
        checks.register(check_database, "redisqueue", deploy=True)
