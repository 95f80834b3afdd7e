"""``context.approval``: a job asks a person, and waits for the decision without a child."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...broker.replies import ClaimedJob
from ...core.clock import from_ms
from ...exceptions import ApprovalRejected, EventTimeout, InvalidOption, JobSuspended, short_repr
from ...models import Approval
from ...models.approvals import event_of
from .steps import Kind, Steps, check_step_name

DECIDE = "django_redisqueue.change_approval"  # the permission, if the job names none
MAX_QUESTION = 10_000  # characters
_PERMISSION = re.compile(r"\w+\.\w+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Decision:
    """What a person has decided: always approved, because a rejection is raised."""

    approved: bool
    by: str
    comment: str


@dataclass(frozen=True, slots=True)
class Question:
    """What a job asks, and who may answer."""

    job: ClaimedJob
    name: str
    text: str
    permission: str

    def get(self, steps: Steps, timeout_ms: int | None) -> Decision:
        """The decision. Raises ApprovalRejected or EventTimeout.

        While it is pending, raises JobSuspended, whose ``prepare`` stores the question.
        """
        try:
            payload = steps.wait(Kind.WAIT, event_of(self.job.id, self.name), timeout_ms)
        except EventTimeout:
            payload = self.late_decision()
            if payload is None:
                raise EventTimeout(
                    f"approval {self.name!r} was not decided in time for {self.job.task}"
                ) from None
        except JobSuspended as suspended:
            suspended.prepare = partial(self.ask, suspended.detail)
            raise
        return _decision(self.name, payload)

    def ask(self, due: str) -> None:
        """Store the question, once. ``due``: when it expires, in ms, or ''."""
        expires_at = from_ms(int(due)) if due else None
        row, is_new = Approval._base_manager.get_or_create(
            job_id=self.job.id,
            name=self.name,
            defaults={
                "task": self.job.task,
                "queue": self.job.queue,
                "question": self.text,
                "permission": self.permission,
                "expires_at": expires_at,
            },
        )
        if is_new:
            return
        if row.is_decided:
            row.announce()  # the event was lost, with Redis or by its age
        else:
            row.reopen(expires_at)

    def late_decision(self) -> Mapping[str, Any] | None:
        """Let the question expire. Returns the decision if one was made just before."""
        row = Approval._base_manager.filter(job_id=self.job.id, name=self.name).first()
        return None if row is None or row.expire() else row.decision()


def _decision(name: str, payload: Mapping[str, Any]) -> Decision:
    decision = Decision(payload["approved"], payload["by"], payload["comment"])
    if not decision.approved:
        comment = f": {decision.comment}" if decision.comment else ""
        raise ApprovalRejected(
            f"approval {name!r} was rejected by {decision.by}{comment}", decision
        )
    return decision


def check_question(job: ClaimedJob, name: object, text: object, permission: object) -> Question:
    """Raises StepError or InvalidOption."""
    if permission is not None and not (
        isinstance(permission, str) and _PERMISSION.fullmatch(permission)
    ):
        raise InvalidOption(
            'permission must be that of a user, such as "shop.approve_refund", not '
            f"{short_repr(permission)}"
        )
    if not isinstance(text, str) or len(text) > MAX_QUESTION:
        raise InvalidOption(
            f"question must be a text of at most {MAX_QUESTION} characters, not {short_repr(text)}"
        )
    return Question(job, check_step_name(name), text, permission or DECIDE)
