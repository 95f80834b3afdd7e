from __future__ import annotations

from importlib import import_module

from django.apps import AppConfig


class ReportsConfig(AppConfig):
    """A report over users, funds and accounts, assembled from three queries that run at once."""

    name = __name__.rpartition(".")[0]
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        import_module(f"{self.name}.receivers")  # it needs models
