"""Background jobs on Redis for Django: none lost, none silently run twice."""

from .backoff import Backoff
from .exceptions import Retry
from .jobs import Job, get_job
from .queue import JobQueue
from .tasks import Task, task

__all__ = ["Backoff", "Job", "JobQueue", "Retry", "Task", "get_job", "task"]
