"""What this package's commands share."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ..texts import harmless

LONGEST = 4000  # characters of a line


class PatientCommand(BaseCommand):
    """Starts also while a database is away, to wait for it: its system checks ask none. (From
    Django 6.1 on the checks of models ask all of them, if one has a JSONField.)"""

    def execute(self, *args: Any, **options: Any) -> Any:
        try:
            return super().execute(*args, **options)
        except CommandError as error:  # its text may come from Redis
            raise CommandError(
                harmless(error, LONGEST), returncode=error.returncode
            ) from error.__cause__

    def say(self, text: str) -> None:
        """Write a line in which nothing can be taken for a command to the terminal."""
        self.stdout.write(harmless(text, LONGEST))

    def get_check_kwargs(self, options: dict[str, Any]) -> dict[Any, Any]:
        kwargs: dict[Any, Any] = super().get_check_kwargs(options)
        return {**kwargs, "databases": []}
