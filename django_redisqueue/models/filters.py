"""Filters of lists of jobs that a user of the admin has saved."""

from __future__ import annotations

from django.conf import settings
from django.db import models


class SavedFilter(models.Model):
    """A filter under a name of its user; saving the name again replaces it."""

    id = models.BigAutoField(primary_key=True)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="redisqueue_filters"
    )
    name = models.CharField(max_length=80)
    query = models.TextField()  # the parameters of a URL

    class Meta:
        verbose_name = "saved filter"
        default_permissions = ()  # everybody has their own
        constraints = [
            models.UniqueConstraint(fields=["user", "name"], name="drq_filter_of_user"),
        ]

    def __str__(self) -> str:
        return self.name
