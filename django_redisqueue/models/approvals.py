"""Approvals: questions of running jobs that a person decides in the admin."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import models, router, transaction
from django.db.models import Q
from django.utils import timezone

from ..client.events import APPROVAL, send_surely
from ..core.statuses import ApprovalStatus
from ..exceptions import WrongState


class Approval(models.Model):
    """A question of a job: one row for each job and name, decided once.

    The row is the truth. The event that wakes the job only carries a copy of the decision.
    """

    id = models.BigAutoField(primary_key=True)
    job_id = models.CharField(max_length=80)
    name = models.CharField(max_length=100)
    task = models.CharField(max_length=255)
    queue = models.CharField(max_length=64)
    question = models.TextField(default="", blank=True)
    permission = models.CharField(max_length=255)  # that a user needs to decide
    status = models.CharField(
        max_length=16,
        default=ApprovalStatus.PENDING,
        choices=[(one.value, one.value) for one in ApprovalStatus],
        db_index=True,
    )
    asked_at = models.DateTimeField(auto_now_add=True, db_index=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    decided_at = models.DateTimeField(null=True, blank=True)
    decided_by = models.CharField(max_length=255, default="", blank=True)
    comment = models.TextField(default="", blank=True)

    class Meta:
        verbose_name = "approval"
        constraints = [
            models.UniqueConstraint(fields=["job_id", "name"], name="drq_approval_of_a_job")
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.job_id}"

    @property
    def event(self) -> str:
        """The event that wakes the job."""
        return event_of(self.job_id, self.name)

    @property
    def is_open(self) -> bool:
        """Whether it can still be decided."""
        is_late = self.expires_at is not None and self.expires_at <= timezone.now()
        return self.status == ApprovalStatus.PENDING and not is_late

    def may_decide(self, user: Any) -> bool:
        """Whether the user has the permission that the job has named."""
        return bool(user.has_perm(self.permission))

    def decide(self, user: Any, *, approved: bool, comment: str = "") -> None:
        """Decide, and wake the job after the commit. Raises PermissionDenied, or WrongState when it
        is decided already or has expired: of two at the same time one wins."""
        if not self.may_decide(user):
            raise PermissionDenied(
                f"{self} needs the permission {self.permission}, which {user} does not have"
            )
        status = ApprovalStatus.APPROVED if approved else ApprovalStatus.REJECTED
        now = timezone.now()
        with transaction.atomic(using=router.db_for_write(type(self))):
            moved = (
                self._pending()
                .filter(Q(expires_at=None) | Q(expires_at__gt=now))
                .update(
                    status=status, decided_at=now, decided_by=user.get_username(), comment=comment
                )
            )
            self.refresh_from_db()
            if not moved:
                raise WrongState(self._why_not())
            self.announce()

    def _why_not(self) -> str:
        if self.status == ApprovalStatus.PENDING:
            return f"{self} has expired"
        who = f" by {self.decided_by}" if self.decided_by else ""
        return f"{self} is {self.status}{who} already"

    def announce(self) -> None:
        """Wake the job."""
        send_surely(self.event, self.decision(), self.queue)

    def decision(self) -> dict[str, Any]:
        """The decision as the job gets it."""
        return {
            "approved": self.status == ApprovalStatus.APPROVED,
            "by": self.decided_by,
            "comment": self.comment,
        }

    @property
    def is_decided(self) -> bool:
        return self.status in (ApprovalStatus.APPROVED, ApprovalStatus.REJECTED)

    def expire(self) -> bool:
        """Let it expire, unless it is decided; True if it has not been."""
        moved = self._pending().update(status=ApprovalStatus.EXPIRED, decided_at=timezone.now())
        self.refresh_from_db()
        return bool(moved) or self.status == ApprovalStatus.EXPIRED

    def reopen(self, expires_at: datetime | None) -> None:
        """Ask again, of a job that was requeued after it expired."""
        expired = self._rows().filter(status=ApprovalStatus.EXPIRED)
        expired.update(status=ApprovalStatus.PENDING, expires_at=expires_at, decided_at=None)
        self.refresh_from_db()

    def _pending(self) -> models.QuerySet[Approval]:
        return self._rows().filter(status=ApprovalStatus.PENDING)

    def _rows(self) -> models.QuerySet[Approval]:
        return type(self)._base_manager.filter(pk=self.pk)


def event_of(job_id: str, name: str) -> str:
    """The event of a decision."""
    return f"{APPROVAL}{job_id}:{name}"
