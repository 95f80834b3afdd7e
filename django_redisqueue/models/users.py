"""What belongs to one user: tokens of the HTTP API, and filters of job lists saved in the admin."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

PREFIX = "drq_"  # lets scanners for leaked secrets recognise a token
USED_EVERY = timedelta(minutes=1)


def digest_of(token: str) -> str:
    """The digest that is stored for a token. The lookup by index leaks nothing through its timing,
    because an attacker cannot choose the digest of a guess."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


class ApiToken(models.Model):
    """A token with its user's permissions. Only its digest is stored; SHA-256 suffices for a secret
    of 256 random bits."""

    id = models.BigAutoField(primary_key=True)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="redisqueue_tokens"
    )
    name = models.CharField(max_length=100)
    digest = models.CharField(max_length=64, unique=True, editable=False)
    hint = models.CharField(max_length=8, editable=False)  # its beginning, to tell tokens apart
    created_at = models.DateTimeField(auto_now_add=True)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)
    expires_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = "API token"

    def __str__(self) -> str:
        return f"{self.name} ({self.hint}…)"

    @classmethod
    def create(cls, user: Any, name: str, expires_at: datetime | None = None) -> tuple[Any, str]:
        """Create a token for ``user``: the saved row, and its text, which is stored nowhere."""
        made = cls(user=user, name=name, expires_at=expires_at)
        text = made.renew()
        made.save()
        return made, text

    def renew(self) -> str:
        """Replace the token without saving the row; returns its text."""
        text = PREFIX + secrets.token_urlsafe(32)
        self.digest = digest_of(text)
        self.hint = text[:8]
        return text

    @classmethod
    def find(cls, text: str) -> ApiToken | None:
        """The token and its user, unless it has expired or the user is inactive."""
        found = cls._base_manager.select_related("user").filter(digest=digest_of(text)).first()
        if found is None or not found.user.is_active:
            return None
        return None if found.expires_at and found.expires_at <= timezone.now() else found

    def mark_used(self) -> None:
        """Store the time of use; writes at most once a minute, also under concurrent use."""
        now = timezone.now()
        if self.last_used_at is None or now - self.last_used_at >= USED_EVERY:
            stale = Q(last_used_at=None) | Q(last_used_at__lte=now - USED_EVERY)
            type(self)._base_manager.filter(stale, pk=self.pk).update(last_used_at=now)


class SavedFilter(models.Model):
    """A user's filter under a name; saving the name again replaces it."""

    id = models.BigAutoField(primary_key=True)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="redisqueue_filters"
    )
    name = models.CharField(max_length=80)
    query = models.TextField()  # the parameters of a URL

    class Meta:
        verbose_name = "saved filter"
        default_permissions = ()  # all users have their own
        constraints = [models.UniqueConstraint(fields=["user", "name"], name="drq_filter_of_user")]

    def __str__(self) -> str:
        return self.name
