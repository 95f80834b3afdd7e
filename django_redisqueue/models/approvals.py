"""Approvals: questions of running jobs that a person decides in the admin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.db import models, router, transaction
from django.db.models import Q
from django.utils import timezone

from ..client.events import send_surely
from ..client.jobs import get_job
from ..core.clock import instant
from ..core.job_data import APPROVAL
from ..core.statuses import ApprovalStatus
from ..exceptions import InvalidOption, RedisQueueError, WrongState, did_you_mean
from .tables import to_column

MODEL_BACKEND = ["django.contrib.auth.backends.ModelBackend"]
UNDECIDED = (ApprovalStatus.PENDING, ApprovalStatus.EXPIRED, ApprovalStatus.CLOSED)


class Approval(models.Model):
    """A question of a job: one row per job and name, decided once.

    The row is the truth. The event that wakes the job only carries a copy of the decision.
    """

    id = models.BigAutoField(primary_key=True)
    job_id = models.CharField(max_length=80)
    name = models.CharField(max_length=100)
    task = models.CharField(max_length=255)
    queue = models.CharField(max_length=64)
    question = models.TextField(default="", blank=True)
    permission = models.CharField(max_length=255)  # that a user needs in order to decide
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
        return bool(user.has_perm(self.permission))

    def decide(self, user: Any, *, approved: bool, comment: str = "") -> None:
        """Decide, and wake the job after the commit. Raises PermissionDenied, or WrongState if it
        is decided or expired, or its job has ended. Of two simultaneous calls one wins."""
        if not self.may_decide(user):
            raise PermissionDenied(
                f"{self} needs the permission {self.permission}, which {user} does not have"
            )
        if self.is_open and (ended := self.job_end()):
            self._reload()  # the job may have ended by a decision of another user
            if self.is_open:
                raise WrongState(f"its job is {ended}, so nothing waits for {self}")
        status = ApprovalStatus.APPROVED if approved else ApprovalStatus.REJECTED
        now = timezone.now()
        with transaction.atomic(using=router.db_for_write(type(self))):
            moved = (
                self._row(ApprovalStatus.PENDING)
                .filter(Q(expires_at=None) | Q(expires_at__gt=now))
                .update(
                    status=status, decided_at=now, decided_by=user.get_username(), comment=comment
                )
            )
            self._reload()
            if not moved:
                raise WrongState(self._why_not())
            self.announce()

    def _why_not(self) -> str:
        if self.status == ApprovalStatus.PENDING:
            return f"{self} has expired"
        if self.status == ApprovalStatus.CLOSED:
            return f"{self} is closed. {self.comment}".rstrip(".")
        who = f" by {self.decided_by}" if self.decided_by else ""
        return f"{self} is already {self.status}{who}"

    def job_end(self) -> str:
        """How its job ended; '' if it has not ended, or that is unknown."""
        try:
            job = get_job(self.job_id)
        except RedisQueueError:
            return ""
        return job.status.value if job.status.is_final else ""

    def announce(self) -> None:
        """Wake the job."""
        send_surely(self.event, self.decision(), self.queue)

    def decision(self) -> dict[str, Any]:
        """The decision in the form that the job receives."""
        return {
            "approved": self.status == ApprovalStatus.APPROVED,
            "by": self.decided_by,
            "comment": self.comment,
        }

    @property
    def is_decided(self) -> bool:
        return self.status in (ApprovalStatus.APPROVED, ApprovalStatus.REJECTED)

    def expire(self) -> bool:
        """Let it expire unless it is decided; returns whether it did."""
        moved = self._row(*UNDECIDED).update(
            status=ApprovalStatus.EXPIRED, decided_at=timezone.now()
        )
        self._reload()
        return bool(moved)

    def reopen(self, expires_at: datetime | None) -> None:
        """Ask again, for a job that was requeued after the approval expired or was closed. Also
        writes a pending row, and so waits for a transaction that closes it."""
        self._row(*UNDECIDED).update(
            status=ApprovalStatus.PENDING, expires_at=expires_at, decided_at=None, comment=""
        )
        self._reload()

    def _reload(self) -> None:
        """Read the row from where it was written: the router may read from replicas, which lag."""
        self.refresh_from_db(using=router.db_for_write(type(self)))

    def _row(self, *statuses: ApprovalStatus) -> models.QuerySet[Approval]:
        """The row, if it has one of these statuses."""
        return type(self)._base_manager.filter(pk=self.pk, status__in=statuses)


def close_approvals(rows: Mapping[int, str], ended: Callable[[], Mapping[str, str]]) -> int:
    """Close pending approvals whose jobs have ended; returns how many.

    ``rows``: the ids of their jobs by primary key. ``ended`` reads how those jobs ended. It is
    called while the rows are locked: a requeued job that asks again waits, then reopens its row.
    """
    alias = router.db_for_write(Approval)
    with transaction.atomic(using=alias):
        pending = Approval._base_manager.using(alias).filter(status=ApprovalStatus.PENDING)
        pending.filter(pk__in=rows).update(status=ApprovalStatus.PENDING)  # locks them
        found = ended()
        closed = 0
        for how in sorted(set(found.values())):
            keys = [pk for pk, job_id in rows.items() if found.get(job_id) == how]
            closed += pending.filter(pk__in=keys).update(
                status=ApprovalStatus.CLOSED,
                decided_at=timezone.now(),
                comment=f"Its job is {how}.",
            )
    return closed


def check_permission(name: str) -> None:
    """Raise InvalidOption for a permission that no user can have. Authentication backends other
    than Django's own may have permissions without a row."""
    has_table = apps.is_installed("django.contrib.auth")
    if not has_table or list(settings.AUTHENTICATION_BACKENDS) != MODEL_BACKEND:
        return
    app, _, codename = name.partition(".")
    known = apps.get_model("auth", "Permission").objects.filter(content_type__app_label=app)
    codenames = set(known.values_list("codename", flat=True))
    if codename not in codenames:
        raise InvalidOption(
            f"there is no permission {name!r}"
            f"{did_you_mean(name, [f'{app}.{one}' for one in codenames])}, so no user could have "
            "it; name one of a model (Meta.permissions), and migrate"
        ) from None


def expiry_of(due: str) -> datetime | None:
    """When a question expires, as the database takes it. ``due``: a time in ms, or ''."""
    return to_column(instant(int(due))) if due else None


def event_of(job_id: str, name: str) -> str:
    return f"{APPROVAL}{job_id}:{name}"
