"""Ports: the protocols that the client package calls, and the implementations in use.

Redis is behind ``Transport``. The database is behind the other ports, which
``django_redisqueue.wiring`` fills once models can be loaded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from .clock import Deadline
from .job_data import JobData, JobQuery, NewJob
from .policies import UniqueKey
from .records import GatherData, GatherPlan, Push, WorkflowData
from .schedules import ScheduleDefinition


class Transport(Protocol):
    """Where client functions send jobs, and where they ask about them: ``RedisTransport``, or
    ``testing.InMemoryQueue`` in an application's tests.

    Integer codes are those of the Lua script of the same name.
    """

    @property
    def in_memory(self) -> bool:
        """Whether jobs live in this process. Such a transport is always available, so it needs
        neither the outbox nor the mirror."""

    def check(self) -> None:
        """Raise ConfigurationError if jobs cannot be sent at all; opens no connection."""

    def enqueue(self, jobs: Sequence[NewJob]) -> None:
        """Accept all of ``jobs``; sending a job again changes nothing. Raises ParentNotFound."""

    def job(self, job_id: str) -> JobData:
        """One job. Raises JobNotFound."""

    def has_job(self, job_id: str) -> bool:
        """Whether the transport keeps this job in memory."""

    def has_followers(self, job_id: str) -> bool:
        """Whether the transport keeps jobs in memory that were to wait for this one."""

    def find(self, query: JobQuery) -> Sequence[JobData]:
        """The newest jobs that match, at most ``query.limit``. Raises NotIndexed."""

    def parent_results(self, job_id: str) -> dict[str, Any]:
        """The results of a job's parents by their ids."""

    def cancel(self, job_id: str) -> int:
        """1 cancelled, 2 asked to stop, 0 already finished, -1 unknown."""

    def requeue(self, job_id: str) -> int:
        """A RequeueReply."""

    def duplicate_of(self, job_id: str) -> str:
        """The job that this id leads to because its own job was a duplicate; or ''."""

    def unique_keys(self, start: int, count: int) -> Sequence[UniqueKey]:
        """A page of the unique keys that jobs have, oldest first."""

    def release_unique(self, key: str) -> str:
        """Free a unique key; the id of the job that had it, or ''."""

    def set_limit(self, key: str, number: str) -> bool:
        """Set the number of a limit key, or the weight of ``s:<share>``, or remove it with ''; True
        if anything changed."""

    def pause(self, queue: str, key: str, paused: bool, by: str) -> bool:
        """Pause or resume a queue, or with a key one of its limit keys or ``s:<share>``; True if
        anything changed. ``by``: who pauses it."""

    def is_paused(self, queue: str) -> bool:
        """Whether a whole queue is paused."""

    def pauses(self, queue: str) -> Mapping[str, str]:
        """The limit keys and shares that are paused in a queue, with who paused them."""

    def unique_conflict(self, job_id: str) -> tuple[str, str]:
        """A unique key of a job that another job has, and that job's id; or two empty strings."""

    def send_event(self, event: str, payload: str) -> None:
        """Wake the jobs that wait for an event; ``payload`` is JSON."""

    def forget_steps(self, job_id: str) -> int:
        """1 forgotten, 0 neither failed nor cancelled, -1 unknown."""

    def wait_for_job(self, job_id: str, deadline: Deadline) -> None:
        """Return once the job has ended. Raises JobNotFound or WaitTimeout."""

    def wait_until(self, has_ended: Callable[[], bool], owner_id: str, deadline: Deadline) -> None:
        """Return once the workflow or gather with this id has ended. Raises WaitTimeout, and
        whatever ``has_ended`` raises."""

    def push_workflow(self, push: Push) -> None:
        """Accept a whole workflow; pushing it again changes nothing. Raises WorkflowError."""

    def push_workflows(self, pushes: Iterable[Push]) -> Iterator[str]:
        """Push many workflows; yields the id of each once it is accepted."""

    def workflow(self, workflow_id: str) -> WorkflowData | None:
        """A workflow and its counts, or None."""

    def control_workflow(self, workflow_id: str, command: str) -> int:
        """``pause``, ``release``, ``cancel`` or ``clean``: 1 done, 0 nothing to do, -1 unknown."""

    def start_gather(self, plan: GatherPlan) -> int:
        """1 started, 0 already started, -1 another gather has the key."""

    def gather(self, key: str) -> GatherData | None:
        """A gather without its results, or None."""

    def gather_results(self, key: str) -> Mapping[str, str]:
        """The results of a gather as JSON, by listener."""

    def gather_key(self, job_id: str) -> str | None:
        """The key of the gather that a running job belongs to, or None. Raises LeaseLost if Redis
        has no record that it runs."""


class Outbox(Protocol):
    """Rows in the database for jobs that Redis has yet to accept."""

    def store(self, jobs: Sequence[NewJob], aliases: Sequence[str]) -> Sequence[str]:
        """Store jobs in the open transactions of ``aliases``, or at once if there are none.

        Returns the aliases that have the rows. Raises ConfigurationError if none has the table.
        """

    def store_undelivered(self, jobs: Sequence[NewJob], alias: str) -> str:
        """Store jobs that Redis refused, at once, on ``alias`` if it has the table; returns the
        alias that has the rows. Raises DatabaseError or ConfigurationError."""

    def find(self, job_id: str) -> NewJob | None:
        """The job that has a row under this id, or None."""

    def find_workflow(self, workflow_id: str) -> Push | None:
        """A workflow that has a row and that Redis has not accepted, or None."""

    def forget_steps(self, job_id: str) -> None:
        """Delete the receipts of a job's steps."""


class Archive(Protocol):
    """Jobs that Redis does not have, as the database has them."""

    def __call__(self, job_id: str, *, in_outbox: bool) -> JobData | None:
        """One job, or None. ``in_outbox``: the caller knows that it was put there."""


@dataclass(slots=True)
class Ports:
    """What is plugged in: by ``wiring`` once Django is ready, and ``adapter`` by the backend for
    Django's own Tasks when that is imported."""

    outbox: Outbox | None = None
    archive: Archive | None = None
    #: The newest jobs of the mirror that match; None when there is no mirror.
    records: Callable[[JobQuery], Sequence[JobData] | None] | None = None
    schedule_rows: Callable[[], Sequence[ScheduleDefinition]] | None = None  # of the admin
    adapter: Callable[[object], Any] | None = None  # a Django task -> a Task, or None
    replacement: Transport | None = None  # in use instead of Redis
    ended: deque[Transport] = field(default_factory=lambda: deque(maxlen=10))
    """Replacements that were in use: a test may read the jobs of a block after the block ends."""


ports = Ports()


@contextmanager
def use_transport(transport: Transport) -> Iterator[None]:
    """Use ``transport`` instead of Redis inside the block; blocks nest."""
    outer, ports.replacement = ports.replacement, transport
    try:
        yield
    finally:
        ports.replacement = outer
