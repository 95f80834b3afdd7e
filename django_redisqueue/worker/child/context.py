"""The first argument of a task with ``takes_context=True``."""

from __future__ import annotations

import math
import time
from asyncio import _get_running_loop
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import Any, TypedDict, TypeVar, Unpack, overload

from asgiref.sync import sync_to_async
from django.db import DEFAULT_DB_ALIAS

from ...broker.failures import retry_while_unavailable
from ...broker.replies import ClaimedJob
from ...client.events import check_event
from ...client.gather import Gather, gather_of
from ...client.jobs import Job
from ...client.options import check_integer
from ...client.transport import transport
from ...core.clock import Duration, from_ms, to_period_ms
from ...core.codec import dumps, utf8_size
from ...core.formatting import shorten
from ...core.ids import due_ms_of, is_workflow_id
from ...core.parsing import is_number
from ...exceptions import (
    Interrupt,
    InvalidArguments,
    JobAbandoned,
    JobCancelled,
    JobSuspended,
    LeaseLost,
    RedisQueueError,
    StepError,
    short_repr,
)
from .iterate import Cursor, Walk, source_of
from .steps import (
    Decision,
    Kind,
    Steps,
    StepStore,
    check_callable,
    check_question,
    check_step_name,
    in_thread,
)

PROGRESS_INTERVAL = 0.1  # s between two reports of one job, except for the last
UNREPORTED_INTERVAL = 2.0  # s until the next report after one that failed
LIMIT = 2**63  # of done and total
MAX_NOTE = 1000  # characters
MAX_WALK_CHUNK = 100_000  # items of iterate

Report = Callable[[str], bool]
Answer = TypeVar("Answer")
Item = TypeVar("Item")


class WalkKeywords(TypedDict, total=False):
    """The options of ``iterate``, for type checkers."""

    chunk: int
    name: str
    total: int | None
    max_runtime: Duration | None


class JobContext:
    """The running job as its task sees it."""

    __slots__ = (
        "_cancelled", "_is_stopping", "_parent_results", "_report", "_reported", "_steps",
        "_store", "_walks", "attempt", "claimed", "interrupt", "job", "max_attempts",
    )  # fmt: skip

    def __init__(
        self,
        claimed: ClaimedJob,
        report: Report,
        store: StepStore,
        is_stopping: Callable[[], bool] = lambda: False,
        max_attempts: int = 1,
    ) -> None:
        self.job = Job(claimed.id)  #: the handle of this job
        self.attempt = claimed.attempts + 1  #: 1 for the first attempt
        self.max_attempts = max_attempts  #: equal to ``attempt`` in the last one
        self.claimed = claimed  # this and the next for tasks of Django's own tasks framework
        self.interrupt: Interrupt | None = None  # what a CancelledError in an async job means
        self._report = report
        self._reported = 0.0
        self._cancelled = False
        self._parent_results: dict[str, Any] | None = None
        self._store = store
        self._is_stopping = is_stopping
        self._walks = 0  # how many are in progress
        self._steps: Steps | None = None

    @property
    def parent_results(self) -> dict[str, Any]:
        """The results of the parents by job id, in the order of the parents; None for a parent
        without a result. The first use reads them, and waits while Redis is unavailable. Raises
        ResultGone, and JobAbandoned if Redis has no record of this run, as after a failover."""
        if self._parent_results is None:
            self._parent_results = _ask(lambda: transport().parent_results(self.job.id))
        return self._parent_results

    async def aparent_results(self) -> dict[str, Any]:
        """``parent_results`` for async tasks, whose event loop it does not block."""
        return await in_thread(lambda: self.parent_results)()

    @property
    def workflow_id(self) -> str | None:
        """The id of the workflow that the job belongs to, or whose callback it is; None for other
        jobs. ``get_workflow`` finds the workflow."""
        found = self.job.id.rpartition(".")[0]
        return found if is_workflow_id(found) else None

    @property
    def gather(self) -> Gather | None:
        """The gather whose listener or callback this job is, or None. This property and the
        gather's methods wait for Redis and raise JobAbandoned, like ``parent_results``."""
        return gather_of(self.job.id, _ask)

    async def agather(self) -> Gather | None:
        """``gather`` for async tasks."""
        return await in_thread(lambda: self.gather)()

    @property
    def due_at(self) -> datetime | None:
        """The due time of a periodic job, however late it started; None for other jobs."""
        return from_ms(due_ms_of(self.job.id))

    @property
    def previous_due_at(self) -> datetime | None:
        """The due time of the run before this one; None for a first run, and for other jobs."""
        return from_ms(self.job.data.previous_due_ms)

    async def aprevious_due_at(self) -> datetime | None:
        """``previous_due_at`` for async tasks."""
        return await in_thread(lambda: self.previous_due_at)()

    @property
    def cancelled(self) -> bool:
        """True once the job has been asked to stop."""
        return self._cancelled

    def mark_cancelled(self) -> None:
        """Called by the worker when the job is cancelled."""
        self._cancelled = True

    @property
    def stopping(self) -> bool:
        """True once the worker is stopping, as for a deploy: the job has the grace period to
        end."""
        return self._is_stopping()

    def progress(self, done: float, total: float, note: str = "") -> None:
        """Report the progress of the job, at most every 0.1 s, and always if ``done >= total``.

        A note is cut after 1,000 characters. Raises InvalidArguments, and JobAbandoned once another
        worker has taken over the job. In an async job a thread sends the latest progress, so a lost
        lease is reported by the next call.
        """
        _check_number(done, "done")
        _check_number(total, "total")
        note = _check_note(note)
        now = time.monotonic()
        if now - self._reported < PROGRESS_INTERVAL and done < total:
            return
        self._reported = now
        text = dumps({"done": done, "total": total, "note": note})
        try:
            is_ours = self._report(text)
        except RedisQueueError:  # not a reason to fail the job
            self._reported = time.monotonic() + UNREPORTED_INTERVAL
            return
        if not is_ours:
            raise JobAbandoned(f"job {self.job.id} was taken over by another worker")

    # Steps

    @property
    def _run(self) -> Steps:
        """The steps of this run, created on first use."""
        if self._steps is None:
            self._steps = Steps(self.claimed, self._store)
        return self._steps

    def step(
        self,
        name: str,
        func: Callable[..., Any],
        /,
        *args: Any,
        atomic: bool = False,
        using: str = DEFAULT_DB_ALIAS,
        **kwargs: Any,
    ) -> Any:
        """Call ``func`` once in the life of the job, and return its result as decoded from JSON.

        Later runs of the job get the same result without a call. With ``atomic`` a receipt commits
        with the rows that ``func`` writes to the database ``using``, so a crash after the commit
        does not repeat them; steps of ``exactly_once`` tasks always do that, in the job's
        transaction. Raises StepError for a name that was used before in this run, InvalidArguments
        or PayloadTooLarge for a result that cannot be stored, and JobAbandoned.
        """
        call = partial(check_callable(func, name), *args, **kwargs)
        return self._run.run(name, call, atomic, using)

    async def astep(self, name: str, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """``step`` for async tasks; ``func`` may be async or return an awaitable, but not with
        ``atomic``."""
        call: Callable[..., Any] = check_callable(func, name, takes_async=True)
        is_async = iscoroutinefunction(call)
        if kwargs.pop("atomic", False):
            if is_async:
                raise StepError(
                    f"step {name!r} is atomic, so it runs in a database transaction, which async "
                    "code cannot use; make its function a plain one"
                )
            return await sync_to_async(self.step)(name, call, *args, atomic=True, **kwargs)
        if not is_async:
            kwargs.pop("using", None)  # as in ``step``
            call = partial(_acall, call)
        return await self._run.arun(name, partial(call, *args, **kwargs))

    @property
    def step_key(self) -> str:
        """The idempotency key of the step that is running, for a foreign API: the same in every
        attempt and recovery of the job. Raises StepError outside a step."""
        return self._run.current_key()

    def step_key_for(self, name: str) -> str:
        """The idempotency key of the step with this name."""
        return self._run.key(name)

    # Waits

    def sleep(self, duration: Duration, *, name: str | None = None) -> None:
        """Continue after ``duration`` (seconds, a timedelta, "90s"), in another run of the job.

        In the meantime the job occupies no child, and it spends no attempt. A sleep is identified
        by its name, or by its position among the sleeps of the run. Raises InvalidOption or
        StepError.
        """
        ms = to_period_ms(duration, "sleep")
        name = self._run.sleep_name() if name is None else check_step_name(name)
        self._run.use(Kind.SLEEP, name)
        self._run.wait(Kind.SLEEP, name, ms)

    def wait_for(self, event: str, *, timeout: Duration | None = None) -> Any:
        """The payload of an event (``send_event``). While it waits, the job occupies no child.

        The job resumes from its steps once the event is sent, or at once if it was sent before, and
        spends no attempt. Raises EventTimeout after ``timeout`` (seconds, a timedelta or text such
        as "3d"; None means no limit), InvalidName, InvalidOption, or StepError if this run has
        waited for the event before.
        """
        ms = _timeout_ms(timeout)
        self._run.use(Kind.WAIT, check_event(event))
        return self._run.wait(Kind.WAIT, event, ms)

    def approval(
        self,
        name: str,
        *,
        permission: str | None = None,
        timeout: Duration | None = None,
        question: str = "",
    ) -> Decision:
        """A person's decision: ``by`` and ``comment``. The job waits for it as for an event.

        The admin shows the question to users who may see approvals. Users with the ``permission``
        ("shop.approve_refund"; by default the one to change approvals) can approve or reject it
        once. Raises ApprovalRejected, EventTimeout, InvalidOption or StepError.
        """
        asked = check_question(self.claimed, name, question, permission)
        self._run.use(Kind.APPROVAL, name)
        return asked.get(self._run, _timeout_ms(timeout))

    async def aapproval(
        self,
        name: str,
        *,
        permission: str | None = None,
        timeout: Duration | None = None,
        question: str = "",
    ) -> Decision:
        """``approval`` for async tasks; not inside a task group, ``gather`` or ``wait_for``."""
        return await sync_to_async(self.approval)(
            name, permission=permission, timeout=timeout, question=question
        )

    async def asleep(self, duration: Duration, *, name: str | None = None) -> None:
        """``sleep`` for async tasks; not inside a task group, ``gather`` or ``wait_for``."""
        await in_thread(self.sleep)(duration, name=name)

    async def await_for(self, event: str, *, timeout: Duration | None = None) -> Any:
        """``wait_for`` for async tasks; not inside a task group, ``gather`` or ``wait_for``."""
        return await in_thread(self.wait_for)(event, timeout=timeout)

    # Iteration

    @overload
    def iterate(self, items: Iterable[Item], **options: Unpack[WalkKeywords]) -> Iterator[Item]: ...
    @overload  # a manager
    def iterate(self, items: Any, **options: Unpack[WalkKeywords]) -> Iterator[Any]: ...
    def iterate(
        self,
        items: Any,
        *,
        chunk: int = 500,
        name: str = "iterate",
        total: int | None = None,
        max_runtime: Duration | None = None,
    ) -> Iterator[Any]:
        """Each item of a queryset, list, tuple or range, from where the last run stopped.

        A queryset is read in the order of a unique key, ``chunk`` rows per query. The cursor is
        saved after each chunk, in an ``exactly_once`` task together with the rows written so far.
        If the worker stops, or after ``max_runtime``, the job returns to its queue after the
        current item, without spending an attempt; a cancel also ends it there. Reports progress
        against ``total`` items, which are counted if it is None. Raises StepError or InvalidOption.
        """
        if _get_running_loop() is not None:
            raise StepError(
                "iterate would block the event loop; in async code use async for ... in "
                "context.aiterate(...)"
            )
        return iter(self._new_walk(items, chunk, name, total, max_runtime))

    @overload
    def aiterate(
        self, items: Iterable[Item], **options: Unpack[WalkKeywords]
    ) -> AsyncIterator[Item]: ...
    @overload  # a manager
    def aiterate(self, items: Any, **options: Unpack[WalkKeywords]) -> AsyncIterator[Any]: ...
    def aiterate(
        self,
        items: Any,
        *,
        chunk: int = 500,
        name: str = "iterate",
        total: int | None = None,
        max_runtime: Duration | None = None,
    ) -> AsyncIterator[Any]:
        """``iterate`` for async tasks: ``async for item in context.aiterate(...)``, not inside a
        task group or ``gather``. An item is done when the loop asks for the next one."""
        return aiter(self._new_walk(items, chunk, name, total, max_runtime))

    def _new_walk(
        self, items: Any, chunk: int, name: str, total: int | None, max_runtime: Duration | None
    ) -> Walk:
        size = check_integer(chunk, "chunk", 1, MAX_WALK_CHUNK)
        if total is not None:
            check_integer(total, "total", 0, LIMIT)
        end = math.inf
        if max_runtime is not None:
            end = time.monotonic() + to_period_ms(max_runtime, "max_runtime") / 1000
        source, cursor = source_of(items), Cursor(self._run, self._run.use(Kind.CURSOR, name))
        return Walk(
            source, cursor, size, total, self._walking, lambda: self._must_stop(end), self.progress
        )

    @contextmanager
    def _walking(self) -> Iterator[None]:
        self._walks += 1
        try:
            yield
        finally:
            self._walks -= 1
        if self._cancelled:
            raise JobCancelled

    @property
    def defers_cancel(self) -> bool:
        """Whether a cancel waits for the end of the current item of a walk."""
        return self._walks > 0

    def _must_stop(self, end: float) -> BaseException | None:
        """The exception that ends this run between two items, or None."""
        if self._cancelled:
            return JobCancelled()
        if self.stopping:
            return JobSuspended("its worker is stopping", detail="head")
        if time.monotonic() >= end:
            return JobSuspended("it has run for max_runtime", detail="tail")
        return None


async def _acall(func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """The return value of ``func``, awaited if it is awaitable, as that of ``manager.acount``."""
    found = await sync_to_async(func)(*args, **kwargs)
    return await found if isawaitable(found) else found


def _ask(question: Callable[[], Answer]) -> Answer:
    """Wait for an answer from Redis. Raises JobAbandoned if Redis has no record of this run."""
    try:
        return retry_while_unavailable(question)
    except LeaseLost as lost:
        raise JobAbandoned(str(lost)) from lost


def _timeout_ms(timeout: Duration | None) -> int | None:
    return None if timeout is None else to_period_ms(timeout, "timeout")


def _check_number(value: object, name: str) -> None:
    if not is_number(value, 0, LIMIT):
        raise InvalidArguments(
            f"progress: {name} must be a number from 0 to 2**63, not {short_repr(value)}"
        )


def _check_note(note: object) -> str:
    """The note, cut with an ellipsis if it is too long, which is no reason to fail a job."""
    if not isinstance(note, str):
        raise InvalidArguments(f"progress: note must be text, not {short_repr(note)}")
    utf8_size(note, "progress: note")
    return shorten(note, MAX_NOTE)
