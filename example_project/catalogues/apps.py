from __future__ import annotations

from django.apps import AppConfig


class CataloguesConfig(AppConfig):
    """Measures how far Django's own translation catalogues are translated."""

    name = "catalogues"
    default_auto_field = "django.db.models.BigAutoField"
