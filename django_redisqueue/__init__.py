"""Background jobs on Redis for Django: none lost, none silently run twice."""

from .client.chunks import Chunk, ChunkItem
from .client.events import send_event
from .client.gather import Gather, get_gather
from .client.jobs import Job, get_job
from .client.limits import set_limit, set_weight
from .client.lookup import afind_jobs, find_jobs
from .client.queue import JobQueue
from .client.tasks import Signature, Task, task
from .client.topics import listener, publish
from .client.unique import release_unique_key, unique_keys
from .client.workflows import Workflow, chain, get_workflow, push_many
from .core.backoff import Backoff
from .core.limits import Limit, Rate
from .core.schedules import Cron, Every
from .core.statuses import (
    GatherStatus,
    OnConflict,
    OnFailure,
    OnParentFailure,
    UniqueMode,
    WorkflowStatus,
)
from .core.text import install_log_filter
from .core.unique import For, Replace
from .exceptions import (
    ApprovalRejected,
    EventTimeout,
    GatherError,
    GatherExists,
    RateLimited,
    Retry,
    UniqueConflict,
    WorkflowError,
)

install_log_filter()

__all__ = [
    "ApprovalRejected",
    "Backoff",
    "Chunk",
    "ChunkItem",
    "Cron",
    "EventTimeout",
    "Every",
    "For",
    "Gather",
    "GatherError",
    "GatherExists",
    "GatherStatus",
    "Job",
    "JobQueue",
    "Limit",
    "OnConflict",
    "OnFailure",
    "OnParentFailure",
    "Rate",
    "RateLimited",
    "Replace",
    "Retry",
    "Signature",
    "Task",
    "UniqueConflict",
    "UniqueMode",
    "Workflow",
    "WorkflowError",
    "WorkflowStatus",
    "afind_jobs",
    "chain",
    "find_jobs",
    "get_gather",
    "get_job",
    "get_workflow",
    "listener",
    "publish",
    "push_many",
    "release_unique_key",
    "send_event",
    "set_limit",
    "set_weight",
    "task",
    "unique_keys",
]
