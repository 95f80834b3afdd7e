"""A job as an application holds it: a handle with an id, and what Redis said of it last."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from asgiref.sync import sync_to_async

from .clock import Duration, from_ms
from .connection import producer_link
from .delivery import Deferred, send_late
from .exceptions import JobFailed, JobNotFound, NotCommitted, WaitTimeout, WrongState
from .ids import check_job_id
from .jobdata import JobData, JobError, Progress
from .largeresults import read_result
from .patience import Patience, listen_until
from .ports import filled, replaced_transport
from .states import Status
from .store.reads import Reads
from .store.transitions import Transitions

OUTBOX_RECHECK = 0.5  # s between two looks at a job that Redis has not yet


class Job:
    """One run of a task. Attributes show the last ``refresh``, which the first of them makes."""

    __slots__ = ("_data", "_deferred", "id")

    def __init__(
        self, job_id: str, *, deferred: Deferred | None = None, data: JobData | None = None
    ) -> None:
        self.id = job_id
        self._deferred = deferred
        self._data = data

    def __repr__(self) -> str:
        return f"<Job {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def is_deferred(self) -> bool:
        """True until the transaction that enqueued it has committed."""
        return self._deferred is not None and bool(self._deferred.pending)

    def when_sent(self, act: Callable[[], object]) -> None:
        """Call ``act`` once the job is sent: now, or after the commit; never after a rollback."""
        if self._deferred is not None and self._deferred.pending:
            self._deferred.then.append(act)
        else:
            act()

    @property
    def data(self) -> JobData:
        """The whole record as of the last refresh."""
        if self._data is None:
            self.refresh()
        assert self._data is not None
        return self._data

    @property
    def task_name(self) -> str:
        return self.data.task

    @property
    def queue_name(self) -> str:
        return self.data.queue

    @property
    def args(self) -> tuple[Any, ...]:
        return self.data.args

    @property
    def kwargs(self) -> Mapping[str, Any]:
        return self.data.kwargs

    @property
    def status(self) -> Status:
        return self.data.status

    @property
    def result(self) -> Any:
        """What the task returned; None until it has completed. Raises ResultGone."""
        data = self.data
        return read_result(data.result_file) if data.result_file else data.result

    @property
    def error(self) -> JobError | None:
        """Why the last attempt failed, if it did."""
        return self.data.error

    @property
    def progress(self) -> Progress | None:
        return self.data.progress

    @property
    def priority(self) -> int:
        return self.data.priority

    @property
    def tags(self) -> Mapping[str, str]:
        return self.data.tags

    @property
    def attempts(self) -> int:
        """Tries that were spent: they raised or timed out."""
        return self.data.attempts

    @property
    def recoveries(self) -> int:
        """Claims that were lost with their worker."""
        return self.data.recoveries

    @property
    def enqueued_at(self) -> datetime | None:
        return from_ms(self.data.enqueued_ms)

    @property
    def started_at(self) -> datetime | None:
        return from_ms(self.data.started_ms)

    @property
    def finished_at(self) -> datetime | None:
        return from_ms(self.data.finished_ms)

    @property
    def run_after(self) -> datetime | None:
        """When a scheduled or retrying job is due."""
        return from_ms(self.data.due_ms)

    def refresh(self) -> None:
        """Read the job anew, from the mirror when Redis has let it go.

        Raises NotCommitted, JobNotFound or CorruptJob.
        """
        try:
            self._read()
        except JobNotFound as gone:
            self._recall(gone)

    def _read(self) -> None:
        self._check_committed("refresh")
        self._data = (replaced_transport() or Reads(producer_link())).job(self.id)

    @property
    def _is_stored(self) -> bool:
        """Whether this handle knows that the job was put into the outbox."""
        return self._deferred is not None and bool(self._deferred.rows)

    def _recall(self, gone: JobNotFound) -> None:
        """What the database knows of a job that Redis does not have."""
        if filled.archive is None or replaced_transport() is not None:
            raise gone
        if (found := filled.archive(self.id, is_stored=self._is_stored)) is not None:
            self._data = found
        else:
            self._read()  # it may have left the outbox for Redis between the two looks

    def cancel(self) -> bool:
        """Cancel the job, or ask it to stop if it runs. False when it had finished already.

        One that is in the outbox is cancelled, too. Raises NotCommitted or JobNotFound.
        """
        try:
            return self._cancel()
        except JobNotFound:
            if not send_late(self.id, is_stored=self._is_stored):
                raise
            return self._cancel()

    def _cancel(self) -> bool:
        self._check_committed("cancel")
        code = (replaced_transport() or Transitions(producer_link())).cancel([self.id])[0]
        self._check_known(code)
        self._data = None
        return code > 0

    def requeue(self) -> None:
        """Send a failed or cancelled job back to its queue, with all its attempts.

        Raises JobNotFound, or WrongState when it is in another status, or in the outbox.
        """
        self._check_committed("requeue")
        code = (replaced_transport() or Transitions(producer_link())).requeue([self.id])[0]
        self._data = None
        if code < -1:
            raise WrongState(f"job {self.id} stays: its workflow is cancelled, or was cleaned up")
        try:
            self._check_known(code)
        except JobNotFound as gone:
            self._recall(gone)
            if self.status.is_final:
                raise
        if code <= 0:
            what = f"job {self.id} is {self.status.value}"
            raise WrongState(f"{what}; only failed or cancelled ones can be requeued")

    def wait(self, timeout: Duration | None = None) -> Any:
        """Wait until the job has ended and return its result.

        ``timeout``: seconds or a timedelta, None for ever. Raises WaitTimeout, or JobFailed when it
        failed or was cancelled. Woken by a message of the job's own; does not poll.
        """
        patience = self._patience(timeout)
        while True:
            try:
                self._await_end(patience)
                return self._outcome()
            except JobNotFound as gone:
                self._recall(gone)
            if self.status.is_final:
                return self._outcome()
            time.sleep(patience.left(OUTBOX_RECHECK))  # it is in the outbox

    def _patience(self, timeout: Duration | None) -> Patience:
        return Patience(timeout, lambda s: f"job {self.id} was not finished after {s:g} s")

    def _await_end(self, patience: Patience) -> None:
        """Until the job has ended, and its data is read. Raises JobNotFound, WaitTimeout."""
        self._check_committed("wait")
        if replaced_transport() is None:
            store = Transitions(producer_link())
            listen_until(
                store.keys.done(self.id), lambda: self._has_ended(store.watch(self.id)), patience
            )
        self._read()

    def _has_ended(self, status: str) -> bool:
        if not status:
            self._check_known(-1)
        return Status(status).is_final

    def _outcome(self) -> Any:
        """The result, from data that was just read."""
        if not self.status.is_final:
            raise WaitTimeout(f"job {self.id} has not finished: it is {self.status.value}")
        if self.status is not Status.COMPLETED:
            why = self.error or self.data.reason or "no error recorded"
            raise JobFailed(f"job {self.id} is {self.status.value}: {why}")
        return self.result

    async def arefresh(self) -> None:
        """``refresh`` for async code."""
        try:
            await sync_to_async(self._read, thread_sensitive=False)()
        except JobNotFound as gone:
            await sync_to_async(self._recall)(gone)  # on the connection that async code uses

    async def acancel(self) -> bool:
        """``cancel`` for async code."""
        try:
            return await sync_to_async(self._cancel, thread_sensitive=False)()
        except JobNotFound:
            return await sync_to_async(self.cancel)()  # on the connection that async code uses

    async def await_result(self, timeout: Duration | None = None) -> Any:
        """``wait`` for async code."""
        patience = self._patience(timeout)
        while True:
            try:
                await sync_to_async(self._await_end, thread_sensitive=False)(patience)
                return self._outcome()
            except JobNotFound as gone:
                await sync_to_async(self._recall)(gone)
            if self.status.is_final:
                return self._outcome()
            await asyncio.sleep(patience.left(OUTBOX_RECHECK))

    def _check_committed(self, verb: str) -> None:
        if self.is_deferred:
            raise NotCommitted(
                f"{verb}: job {self.id} is not in Redis yet, for its transaction has not "
                "committed; ask after the commit, or enqueue with using(on_commit=False)"
            )

    def _check_known(self, code: int) -> None:
        if code < 0:
            raise JobNotFound(
                f"no job {self.id} in Redis: it never was, or retention has let it go"
            )


def get_job(job_id: str) -> Job:
    """The job of that id, from the mirror when Redis has let it go.

    Raises InvalidName, JobNotFound or CorruptJob.
    """
    job = Job(check_job_id(job_id))
    job.refresh()
    return job
