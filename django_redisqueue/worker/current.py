"""The run in progress. A module of its own, because log filters import it before Django has loaded
its apps."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ..broker.replies import ClaimedJob
    from .child.context import JobContext


class CurrentRun(Protocol):
    """A run of a job; of a chunk, its first job's."""

    @property
    def job(self) -> ClaimedJob: ...

    def get_context(self) -> JobContext | None: ...


#: Of the job that this code runs for, or None.
current_run: ContextVar[CurrentRun | None] = ContextVar("redisqueue_current_run", default=None)


def current_context() -> JobContext | None:
    """The context of the running job, which tasks with ``takes_context=True`` get as an argument;
    None outside of jobs, and in a chunk, whose jobs share one call."""
    run = current_run.get()
    return None if run is None else run.get_context()
