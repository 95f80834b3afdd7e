"""Background jobs on Redis for Django: none lost, none silently run twice."""

from .backoff import Backoff
from .exceptions import Retry, WorkflowError
from .jobs import Job, get_job
from .queue import JobQueue
from .states import OnFailure, WorkflowStatus
from .tasks import Signature, Task, task
from .workflows import Workflow, chain, get_workflow, push_many

__all__ = [
    "Backoff",
    "Job",
    "JobQueue",
    "OnFailure",
    "Retry",
    "Signature",
    "Task",
    "Workflow",
    "WorkflowError",
    "WorkflowStatus",
    "chain",
    "get_job",
    "get_workflow",
    "push_many",
    "task",
]
