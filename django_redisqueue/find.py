"""Jobs looked up by their properties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from asgiref.sync import sync_to_async

from .conf import get_settings
from .connection import producer_link
from .exceptions import InvalidOption, NotIndexed, shown
from .ids import check_queue_name, check_task_name, check_workflow_id
from .jobdata import JobData
from .jobs import Job
from .keys import index_entry
from .lookup import JobQuery
from .options import check_whole
from .ports import filled, replaced_transport
from .states import UNFINISHED, Status
from .store.find import Finder
from .tags import check_tags, properties
from .tasks import Task
from .workflows import Workflow

MOST = 1000  # jobs a call


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

    ``status``: one, several, or ``"unfinished"``; none means any. When only unfinished jobs are
    wanted and ``INDEXED`` names all the other properties (but for the queue), Redis answers, by the
    present moment; else the mirror does, which follows by some milliseconds. Raises NotIndexed when
    neither can, and InvalidOption or InvalidName for what is no property.
    """
    query = JobQuery(
        task=_task(task),
        workflow=_workflow(workflow),
        statuses=_statuses(status),
        queue=check_queue_name(queue) if queue else "",
        tags=check_tags(tags or {}),
        limit=check_whole(limit, "limit", 1, MOST),
    )
    return [Job(job.id, data=job) for job in _found(query)]


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


def _found(query: JobQuery) -> Sequence[JobData]:
    transport, settings = replaced_transport(), get_settings()
    if transport is not None:
        return transport.find(query)
    wanted = list(properties(query.task, query.workflow, query.tags))
    missing = [name for name, _ in wanted if name not in settings.indexed]
    if query.is_unfinished and wanted and not missing:
        entries = [index_entry(name, value) for name, value in wanted]
        return Finder(producer_link()).find(entries, query)
    found = filled.records(query) if settings.mirror and filled.records is not None else None
    if found is None:
        raise NotIndexed(_remedy(query, [name for name, _ in wanted], missing))
    return found


def _remedy(query: JobQuery, wanted: Sequence[str], missing: Sequence[str]) -> str:
    mirror = 'turn on the mirror (REDISQUEUE["MIRROR"], and this app in INSTALLED_APPS)'
    if not wanted:
        return (
            "without the mirror, jobs are found by a task, a workflow or tags; for the lists of a "
            f"queue use JobQueue.get_jobs, or {mirror}"
        )
    parts = []
    if missing:
        names = ", ".join(f'"{name}"' for name in missing)
        parts.append(f'add {names} to REDISQUEUE["INDEXED"]')
    if not query.is_unfinished:
        parts.append('ask for unfinished jobs only (status="unfinished")')
    return f"without the mirror, {' and '.join(parts)}; or {mirror}"


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
            f'status must be "unfinished" or among {", ".join(Status)}, not {shown(value)}'
        ) from None
