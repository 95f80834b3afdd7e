"""``find_jobs``: jobs by their properties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from asgiref.sync import sync_to_async

from ..core.ids import check_queue_name, check_task_name, check_workflow_id
from ..core.job_data import JobQuery
from ..core.statuses import UNFINISHED, Status
from ..core.tags import check_tags
from ..exceptions import InvalidOption, short_repr
from .jobs import Job
from .options import check_integer
from .tasks import Task
from .transport import transport
from .workflows import Workflow

MAX_LIMIT = 1000


def find_jobs(
    *,
    task: str | Task = "",
    workflow: str | Workflow = "",
    status: str | Sequence[str] = (),
    queue: str = "",
    tags: Mapping[str, str] | None = None,
    limit: int = 100,
) -> list[Job]:
    """The newest jobs that have all these properties, at most ``limit`` (1 to 1,000) of them.

    ``status``: one, several, or ``"unfinished"``; by default any. Redis answers when only
    unfinished jobs are wanted and ``INDEXED`` names all the other properties (except the queue).
    Otherwise the mirror does, which is some milliseconds behind. Raises NotIndexed when neither can
    answer, and InvalidOption or InvalidName for invalid properties.
    """
    query = JobQuery(
        task=_task(task),
        workflow=_workflow(workflow),
        statuses=_statuses(status),
        queue=check_queue_name(queue) if queue else "",
        tags=check_tags(tags or {}),
        limit=check_integer(limit, "limit", 1, MAX_LIMIT),
    )
    return [Job(job.id, data=job) for job in transport().find(query)]


async def afind_jobs(
    *,
    task: str | Task = "",
    workflow: str | Workflow = "",
    status: str | Sequence[str] = (),
    queue: str = "",
    tags: Mapping[str, str] | None = None,
    limit: int = 100,
) -> list[Job]:
    """``find_jobs`` for async code."""
    return await sync_to_async(find_jobs)(
        task=task, workflow=workflow, status=status, queue=queue, tags=tags, limit=limit
    )


def _task(value: str | Task) -> str:
    return value.name if isinstance(value, Task) else check_task_name(value) if value else ""


def _workflow(value: str | Workflow) -> str:
    if isinstance(value, Workflow):
        return value.id
    return check_workflow_id(value) if value else ""


def _statuses(value: str | Sequence[str]) -> frozenset[Status]:
    if value == "unfinished":
        return UNFINISHED
    try:
        return frozenset(Status(name) for name in ([value] if isinstance(value, str) else value))
    except (ValueError, TypeError):
        raise InvalidOption(
            f'status must be "unfinished" or among {", ".join(Status)}, not {short_repr(value)}'
        ) from None
