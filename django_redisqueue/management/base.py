"""What this package's commands share."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand


class PatientCommand(BaseCommand):
    """Starts also while a database is away, to wait for it: its system checks ask none. (From
    Django 6.1 on the checks of models ask all of them, if one has a JSONField.)"""

    def get_check_kwargs(self, options: dict[str, Any]) -> dict[Any, Any]:
        kwargs: dict[Any, Any] = super().get_check_kwargs(options)
        return {**kwargs, "databases": []}
