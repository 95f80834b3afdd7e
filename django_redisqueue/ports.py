"""Where other layers plug in: protocols, filled by whoever implements them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from .flowdata import FlowData, Push
from .gatherdata import GatherData, GatherPlan
from .jobdata import JobData, NewJob
from .lookup import JobQuery


class Transport(Protocol):
    """Stands in for Redis towards an application: takes its jobs, and tells of them afterwards.
    The ``testing`` module keeps them in memory."""

    def send(self, jobs: Sequence[NewJob]) -> None:
        """Accept all of ``jobs``, or raise (ParentNotFound, for one); sending one again changes
        nothing."""

    def job(self, job_id: str) -> JobData:
        """One job. Raises JobNotFound."""

    def find(self, query: JobQuery) -> Sequence[JobData]:
        """The newest jobs that match, at most as many as are wanted."""

    def parent_results(self, job_id: str) -> dict[str, Any]:
        """What the jobs that a job waited for returned, by their ids."""

    def cancel(self, ids: Sequence[str]) -> list[int]:
        """Codes of cancel.lua: 1 cancelled, 2 asked to stop, 0 finished already, -1 not known."""

    def requeue(self, ids: Sequence[str]) -> list[int]:
        """Codes of requeue.lua: 1 requeued, 0 neither failed nor cancelled, -1 not known, -2 and -3
        its workflow is cleaned up or cancelled."""

    def push(self, push: Push) -> int:
        """Accept a whole workflow; codes of push.lua: 1 taken, 0 known already, -2 cleaned up."""

    def workflow(self, flow_id: str) -> FlowData | None:
        """A workflow and its counts, or None."""

    def steer(self, flow_id: str, order: str) -> int:
        """Pause, release, cancel or clean a workflow: 1 done, 0 nothing to do, -1 not known."""

    def gather(self, plan: GatherPlan) -> int:
        """Codes of gather.lua: 1 started, 0 known already, -1 another gather has the key."""

    def gather_data(self, key: str) -> GatherData | None:
        """A gather without its results, or None."""

    def gather_results(self, key: str) -> Mapping[str, str]:
        """The results of a gather as JSON, by listener."""

    def key_of(self, job_id: str) -> str | None:
        """The key of the gather that a job belongs to, or None."""


class Outbox(Protocol):
    """Rows in the database for jobs on their way into Redis."""

    def store(self, jobs: Sequence[NewJob], aliases: Sequence[str]) -> Sequence[str]:
        """Store jobs in the open transactions of ``aliases``, or at once if there are none.

        Returns the aliases that have the rows. Raises ConfigurationError when none has the table.
        """

    def keep(self, jobs: Sequence[NewJob], alias: str) -> str:
        """Store jobs that Redis did not take, at once, on ``alias`` if it has the table; on which
        alias it was. Raises what the database raises, or ConfigurationError."""

    def find(self, job_id: str) -> tuple[NewJob, Sequence[str]] | None:
        """A job that has a row, and the aliases that have it; or None."""

    def find_workflow(self, flow_id: str) -> Push | None:
        """A workflow that has a row, and that Redis has not accepted; or None."""


class Archive(Protocol):
    """What is known of jobs that Redis does not have."""

    def __call__(self, job_id: str, *, is_stored: bool) -> JobData | None:
        """One job, or None. ``is_stored``: it is known to have been put into the outbox."""


class Records(Protocol):
    """Jobs by their properties, as the mirror knows them."""

    def __call__(self, query: JobQuery) -> Sequence[JobData] | None:
        """The newest jobs that match; None when there is no mirror."""


@dataclass(slots=True)
class Filled:
    """The ports that the app fills when Django is ready, and the backend of Django's own Tasks when
    it is imported."""

    outbox: Outbox | None = None
    archive: Archive | None = None
    records: Records | None = None
    adapter: Callable[[object], Any] | None = None  # one of Django's tasks as one of ours, or None


filled = Filled()

_transport: list[Transport] = []


@contextmanager
def standing_in(transport: Transport) -> Iterator[None]:
    """Use ``transport`` meanwhile; replacements nest."""
    _transport.append(transport)
    try:
        yield
    finally:
        _transport.pop()


def replaced_transport() -> Transport | None:
    """The transport in use instead of Redis, if any."""
    return _transport[-1] if _transport else None
