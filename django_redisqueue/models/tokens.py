"""Access to the HTTP API without a session."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

PREFIX = "drq_"  # so that a scanner for leaked secrets knows one when it sees it
USED_EVERY = timedelta(minutes=1)


def digest_of(token: str) -> str:
    """What is stored of a token. It is looked up by an index, so the time that takes says nothing
    about the token: whoever guesses does not know which digest a guess will have."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


class ApiToken(models.Model):
    """A token of a user, with that user's permissions. Only its digest is stored (SHA-256: a token
    is 256 random bits, so nothing slower is needed)."""

    id = models.BigAutoField(primary_key=True)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="redisqueue_tokens"
    )
    name = models.CharField(max_length=100)
    digest = models.CharField(max_length=64, unique=True, editable=False)
    hint = models.CharField(max_length=8, editable=False)  # its beginning, to tell them apart
    created_at = models.DateTimeField(auto_now_add=True)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)
    expires_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = "API token"

    def __str__(self) -> str:
        return f"{self.name} ({self.hint}…)"

    @classmethod
    def create(cls, user: Any, name: str, expires_at: datetime | None = None) -> tuple[Any, str]:
        """A new token of ``user``: the saved row, and the token's text, which is nowhere kept."""
        made = cls(user=user, name=name, expires_at=expires_at)
        text = made.renew()
        made.save()
        return made, text

    def renew(self) -> str:
        """Give this row a new token, without saving it; returns the token's text."""
        text = PREFIX + secrets.token_urlsafe(32)
        self.digest = digest_of(text)
        self.hint = text[:8]
        return text

    @classmethod
    def find(cls, text: str) -> ApiToken | None:
        """The row of that token, with its user, unless it has expired or its user is inactive."""
        found = cls._base_manager.select_related("user").filter(digest=digest_of(text)).first()
        if found is None or found.is_expired or not found.user.is_active:
            return None
        return found

    @property
    def is_expired(self) -> bool:
        """True from ``expires_at`` on."""
        return self.expires_at is not None and self.expires_at <= timezone.now()

    def mark_used(self) -> None:
        """Note that it was used now; writes at most once a minute, however many use it at once."""
        now = timezone.now()
        if self.last_used_at is None or now - self.last_used_at >= USED_EVERY:
            stale = Q(last_used_at=None) | Q(last_used_at__lte=now - USED_EVERY)
            type(self)._base_manager.filter(stale, pk=self.pk).update(last_used_at=now)
