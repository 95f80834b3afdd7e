"""What applications import from ``django_redisqueue``."""

from ..core.policies import Backoff, For, Limit, Rate, Replace
from ..core.schedules import Cron, Every
from ..core.statuses import (
    GatherStatus,
    OnConflict,
    OnFailure,
    OnParentFailure,
    UniqueMode,
    WorkflowStatus,
)
from ..exceptions import (
    ApprovalRejected,
    EventTimeout,
    GatherError,
    GatherExists,
    RateLimited,
    Retry,
    UniqueConflict,
    WorkflowError,
)
from .decorator import task
from .events import send_event
from .gather import Gather, get_gather, listener, publish
from .jobs import Job, aget_job, get_job
from .limits import release_unique_key, set_limit, set_weight, unique_keys
from .options import Chunk, ChunkItem
from .queue import JobQueue, afind_jobs, find_jobs
from .tasks import Signature, Task
from .workflows import Workflow, chain, get_workflow, push_many

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
    "aget_job",
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
