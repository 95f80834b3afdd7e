"""``Job``: the handle of a job, with its id and the data it last read."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextvars import copy_context
from datetime import datetime
from functools import partial
from typing import Any

from asgiref.sync import sync_to_async

from ..broker.queries import not_found
from ..broker.replies import RequeueReply
from ..conf import is_in_test_run
from ..core.clock import Deadline, Duration, from_ms
from ..core.ids import check_job_id
from ..core.job_data import JobData, JobError, Progress
from ..core.ports import ports
from ..core.statuses import Status
from ..exceptions import (
    JobFailed,
    JobNotFound,
    NotCommitted,
    UniqueConflict,
    WaitTimeout,
    WrongState,
)
from .enqueue import Deferred, send_to_cancel
from .large_results import read_result
from .transport import transport, transport_of

OUTBOX_RECHECK = 0.5  # s between reads of a job that is still in the outbox


class Job:
    """One call of a task. Attributes show what ``refresh`` last read; the first use calls it."""

    __slots__ = ("_data", "_deferred", "_is_duplicate", "id")

    def __init__(
        self,
        job_id: str,
        *,
        deferred: Deferred | None = None,
        data: JobData | None = None,
        is_duplicate: bool = False,
    ) -> None:
        self.id = job_id
        self._is_duplicate = is_duplicate
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

    @property
    def is_duplicate(self) -> bool:
        """True if ``enqueue`` created no job because another job had the unique key; this is then
        the handle of that job. An id that the caller got before a commit leads to that job."""
        if self._is_duplicate or self._deferred is None:
            return self._is_duplicate
        return any(job.id == self.id and job.owner for job in self._deferred.jobs)

    def on_sent(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` once the job is sent: now, or after the commit if it waits for one."""
        if self._deferred is not None and self._deferred.pending:
            self._deferred.callbacks.append(callback)
        else:
            callback()

    @property
    def data(self) -> JobData:
        """All data of the job as of the last refresh."""
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
        """What the task returned; None until it has completed. Reads a large result from its
        storage: in async code use ``await_result``. Raises ResultGone."""
        data = self.data
        return read_result(data.result_file) if data.result_file else data.result

    @property
    def error(self) -> JobError | None:
        """The error of the last attempt, if it failed."""
        return self.data.error

    @property
    def reason(self) -> str:
        """Why it ended without an error of its own, such as ``timeout``; see JobReason."""
        return self.data.reason

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
        """Attempts spent: they raised or timed out."""
        return self.data.attempts

    @property
    def recoveries(self) -> int:
        """Claims that were lost because a worker died."""
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
        """Read the job again, from the mirror if Redis has pruned it.

        Raises NotCommitted, JobNotFound or CorruptJob.
        """
        try:
            self._read()
        except JobNotFound as error:
            self._read_from_database(error)

    def _read(self) -> None:
        self._check_committed("refresh")
        self._data = transport_of(self.id).job(self.id)

    @property
    def _in_outbox(self) -> bool:
        """Whether this handle knows that the job was stored in the outbox."""
        return self._deferred is not None and bool(self._deferred.rows)

    def _read_from_database(self, error: JobNotFound) -> None:
        """Read a job that Redis does not have; raises ``error`` if the database cannot have it."""
        if ports.archive is None or transport().in_memory:
            raise error
        found = ports.archive(self.id, in_outbox=self._in_outbox)
        if found is None and (owner := transport_of(self.id).duplicate_of(self.id)):
            found = ports.archive(owner, in_outbox=False)
        if found is not None:
            self._data = found
        else:
            self._read()  # the relay may have sent it between the two reads

    def cancel(self) -> bool:
        """Cancel the job, or ask it to stop if it is running. False when it had already finished.

        A job in the outbox is cancelled as well. Raises NotCommitted or JobNotFound.
        """
        try:
            return self._cancel()
        except JobNotFound:
            if not send_to_cancel(self.id, in_outbox=self._in_outbox):
                raise
            return self._cancel()

    def _cancel(self) -> bool:
        self._check_committed("cancel")
        code = transport().cancel(self.id)
        if code < 0:
            raise not_found(self.id)
        self._data = None
        return code > 0

    def requeue(self) -> None:
        """Send a failed or cancelled job back to its queue, with all its attempts again.

        Raises JobNotFound, or WrongState when it has another status or is in the outbox.
        """
        self._check_committed("requeue")
        code = transport().requeue(self.id)
        self._data = None
        if code == RequeueReply.UNIQUE_CONFLICT:
            key, owner = transport_of(self.id).unique_conflict(self.id)
            raise UniqueConflict(
                f"job {self.id} cannot be requeued: job {owner or 'another'} has its unique key "
                f"{key}; requeue it once that job has ended"
            )
        if code in (RequeueReply.WORKFLOW_CANCELLED, RequeueReply.WORKFLOW_CLEANED):
            raise WrongState(
                f"job {self.id} cannot be requeued: its workflow is cancelled or was cleaned up"
            )
        if code == RequeueReply.UNKNOWN:
            self._read_from_database(error := not_found(self.id))
            if self.status.is_final:
                raise error
        if code != RequeueReply.REQUEUED:
            raise WrongState(
                f"job {self.id} is {self.status.value}; only failed or cancelled jobs can be "
                "requeued"
            )

    def forget_steps(self) -> None:
        """Forget the steps of a failed or cancelled job, so that ``requeue`` starts it over.

        Raises JobNotFound, or WrongState when it has another status.
        """
        self._check_committed("forget_steps")
        code = transport().forget_steps(self.id)
        if code < 0:
            raise not_found(self.id)
        if code == 0:
            self.refresh()
            raise WrongState(
                f"job {self.id} is {self.status.value}; only a failed or cancelled job can forget "
                "its steps"
            )
        if ports.outbox is not None and not transport().in_memory:
            ports.outbox.forget_steps(self.id)

    def wait(self, timeout: Duration | None = None) -> Any:
        """Wait until the job has ended and return its result.

        ``timeout``: a duration, None for no limit. Raises WaitTimeout, or JobFailed
        when it failed or was cancelled. A message from Redis ends the wait; there is no polling.
        """
        deadline = self._deadline(timeout)
        while True:
            try:
                self._await_end(deadline)
                return self._outcome()
            except JobNotFound as error:
                self._read_from_database(error)
            if self.status.is_final:
                return self._outcome()
            time.sleep(deadline.left(OUTBOX_RECHECK))  # it is in the outbox

    def _deadline(self, timeout: Duration | None) -> Deadline:
        hint = "redisqueue_doctor says whether a worker serves its queue"
        return Deadline(timeout, lambda s: f"job {self.id} had not finished after {s:g} s; {hint}")

    def _await_end(self, deadline: Deadline) -> None:
        """Wait for the job to end, and read it. Raises JobNotFound or WaitTimeout."""
        self._check_committed("wait")
        transport_of(self.id).wait_for_job(self.id, deadline)
        self._read()

    def _outcome(self) -> Any:
        """The result, from the data just read."""
        if not self.status.is_final:
            # In Redis, it was requeued between its end and the read.
            hint = "; run it first, for example with drain()" if transport().in_memory else ""
            raise WaitTimeout(f"job {self.id} has not finished: it is {self.status.value}{hint}")
        if self.status is not Status.COMPLETED:
            why = self.error or self.data.reason
            raise JobFailed(f"job {self.id} is {self.status.value}{f': {why}' if why else ''}")
        return self.result

    # The database is asked on the connections that async code uses, Redis in any thread.

    async def arefresh(self) -> None:
        """``refresh`` for async code."""
        try:
            await sync_to_async(self._read, thread_sensitive=False)()
        except JobNotFound as error:
            await sync_to_async(self._read_from_database)(error)

    async def acancel(self) -> bool:
        """``cancel`` for async code."""
        try:
            return await sync_to_async(self._cancel, thread_sensitive=False)()
        except JobNotFound:
            return await sync_to_async(self.cancel)()

    async def await_result(self, timeout: Duration | None = None) -> Any:
        """``wait`` for async code."""
        deadline = self._deadline(timeout)
        try:
            while True:
                try:
                    await asyncio.wrap_future(_in_own_thread(partial(self._await_end, deadline)))
                    return await self._aoutcome()
                except JobNotFound as error:
                    await sync_to_async(self._read_from_database)(error)
                if self.status.is_final:
                    return await self._aoutcome()
                await asyncio.sleep(deadline.left(OUTBOX_RECHECK))
        finally:
            deadline.end()  # a cancel of this coroutine does not reach the thread

    async def _aoutcome(self) -> Any:
        """``_outcome``; a large result is read from storage in a thread."""
        is_large = self.data.result_file
        return await sync_to_async(self._outcome)() if is_large else self._outcome()

    def _check_committed(self, verb: str) -> None:
        if self.is_deferred:
            commit = "captureOnCommitCallbacks" if is_in_test_run() else "the commit"
            raise NotCommitted(
                f"{verb}: job {self.id} is not in Redis, because its transaction has not "
                f"committed, or was rolled back; call this after {commit}, or enqueue with "
                "using(on_commit=False)"
            )


def _in_own_thread(call: Callable[[], object]) -> Future[object]:
    """Start a wait that may be long. What ends it may need one of the event loop's few threads; and
    a process that exits waits for those, but not for a daemon."""
    future: Future[object] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    future.set_running_or_notify_cancel()
    target = partial(copy_context().run, run)
    threading.Thread(target=target, name="redisqueue-wait", daemon=True).start()
    return future


def get_job(job_id: str) -> Job:
    """The job with that id, from the mirror if Redis has pruned it. Raises
    InvalidName, JobNotFound or CorruptJob."""
    job = Job(check_job_id(job_id))
    job.refresh()
    return job


aget_job = sync_to_async(get_job)  # on the connections that async code uses: it may read the mirror
