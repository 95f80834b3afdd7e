"""The run in progress. A module of its own, because log filters import it before Django has loaded
its apps."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ..broker.replies import ClaimedJob
    from .child.context import JobContext


class CurrentRun(Protocol):
    @property
    def job(self) -> ClaimedJob: ...

    @property
    def is_running(self) -> bool: ...

    def get_context(self) -> JobContext | None: ...


#: The last run in this context, which may have ended: to reset this after each job would cost more.
current_run: ContextVar[CurrentRun | None] = ContextVar("redisqueue_current_run", default=None)


def current_claim() -> ClaimedJob | None:
    """The job that this code runs for; in a chunk, its first job."""
    run = current_run.get()
    return run.job if run is not None and run.is_running else None


def current_context() -> JobContext | None:
    """The context of the running job, which tasks with ``takes_context=True`` get as an argument;
    None outside of jobs, and in a chunk, whose jobs share one call."""
    run = current_run.get()
    return run.get_context() if run is not None and run.is_running else None
