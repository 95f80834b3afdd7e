"""Background jobs on Redis for Django: none lost, none silently run twice."""

from .backoff import Backoff
from .exceptions import GatherError, GatherExists, Retry, WorkflowError
from .find import afind_jobs, find_jobs
from .gather import Gather, get_gather, listener, publish
from .jobs import Job, get_job
from .logs import guard
from .queue import JobQueue
from .states import GatherStatus, OnFailure, OnParentFailure, WorkflowStatus
from .tasks import Signature, Task, task
from .workflows import Workflow, chain, get_workflow, push_many

guard()

__all__ = [
    "Backoff",
    "Gather",
    "GatherError",
    "GatherExists",
    "GatherStatus",
    "Job",
    "JobQueue",
    "OnFailure",
    "OnParentFailure",
    "Retry",
    "Signature",
    "Task",
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
    "task",
]
