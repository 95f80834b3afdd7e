"""What policies mean for one job: why it does not run, its unique keys, and what it remembers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from django.db import Error as DatabaseError

from ..broker.steps import StepQueries
from ..broker.uniques import UniqueKey, UniqueQueries
from ..client.transport import connection_of
from ..core.job_data import JobData, WaitKind, split_wait
from ..core.text import printable
from ..exceptions import RedisQueueError
from ..health.facts import savepoint
from ..health.waiting import why_not_running
from ..models import Approval
from .job_detail import JobDetail
from .pages import Page

REMEMBERED = 100  # steps and waits that are named
LABELS = {"step": "Steps done", "cursor": "Walks", "wait": "Waits", "sleep": "Sleeps"}


@dataclass(frozen=True, slots=True)
class JobPolicies:
    """``remembered``: names of steps, walks and waits by their label."""

    why: str = ""
    unique: Sequence[UniqueKey] = ()
    remembered: Sequence[tuple[str, Sequence[str]]] = ()
    more_remembered: int = 0
    approval_url: str = ""


def read_job_policies(page: Page, detail: JobDetail, parents: Sequence[str]) -> JobPolicies:
    """At most ten round trips, of a job that Redis has; what cannot be read is left out."""
    job = detail.job
    if job is None or not detail.is_live or job.status.is_final:
        return JobPolicies()
    connection = connection_of(job.id)
    try:
        why = why_not_running(job, page.health.facts.shard, connection, parents)
        unique = UniqueQueries(connection).held_by(job.id, job.unique) if job.unique else []
        names = StepQueries(connection).names(job.id)
    except RedisQueueError as error:
        return JobPolicies(why=f"Why it does not run cannot be read: {error}.")
    shown = names[:REMEMBERED]
    remembered = [
        (LABELS.get(kind, printable(kind)), [printable(name) for _, name in group])
        for kind, group in groupby(shown, key=lambda one: one[0])
    ]
    return JobPolicies(why, unique, remembered, len(names) - len(shown), _approval_url(page, job))


def _approval_url(page: Page, job: JobData) -> str:
    """The page of the approval that the job waits for, for those who may see it."""
    kind, name = split_wait(job.id, job.waits_for or "")
    if kind is not WaitKind.APPROVAL or not page.has_perm("view_approval"):
        return ""
    try:
        with savepoint(Approval):
            row = Approval.objects.filter(job_id=job.id, name=name).values_list("pk").first()
    except DatabaseError:
        return ""
    return page.optional_url("approval_change", row[0]) if row else ""
