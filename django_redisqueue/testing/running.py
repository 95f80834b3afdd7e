"""One run of one job here and now, by the worker's own rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import copy_context
from typing import Any

from asgiref.sync import async_to_sync

from ..conf import get_settings
from ..exceptions import Interrupt
from ..jobs import Job
from ..store.replies import Claimed, Verdict
from ..worker.context import JobContext
from ..worker.executor import Call, Resolver, perform
from ..worker.verdicts import UNKNOWN_TASK_LIMIT, Ruling, judge


class Running:
    """A run; ``error`` is what ended it, if it did not complete."""

    def __init__(
        self, job: Claimed, parent_results: Mapping[str, Any], report: Callable[[str], None]
    ) -> None:
        self._job = job
        self._parent_results = parent_results
        self._settings = get_settings()
        self._report = report
        self._context = JobContext(Job(job.id), job.attempts + 1, self._progress, job)
        self.error: BaseException | None = None

    def mark_cancelled(self) -> None:
        """Tell the task that somebody wants it to stop; it is not interrupted here."""
        self._context.mark_cancelled()

    def run(self) -> Ruling:
        """Run to the end. A task that nobody knows fails at once, for no newer worker will come."""
        resolve = Resolver(self._settings, lambda _: UNKNOWN_TASK_LIMIT, self._parent_result)
        call = resolve(self._job)
        return call if isinstance(call, Ruling) else self._perform(call)

    def _parent_result(self, _: str) -> Any:
        """What the only parent of a job of a chain returned."""
        return next(iter(self._parent_results.values()), None)

    def _perform(self, call: Call) -> Ruling:
        args = [self._context, *call.args] if call.task.options.takes_context else call.args
        # async_to_sync brings ORM calls of the task back to this thread and its transaction.
        func: Callable[..., Any] = (
            async_to_sync(call.task.func) if call.task.is_async else call.task.func
        )
        try:
            body = perform(
                call, lambda _: copy_context().run(func, *args, **call.kwargs), self._settings
            )
        # No more than these: what else there is (Ctrl-C, pytest.fail) means the test.
        except (Exception, Interrupt, SystemExit) as error:
            self.error = error
            return judge(
                error, call.task.options, self._job.attempts, call.max_attempts, self._settings
            )
        return Ruling(Verdict.COMPLETED, body)

    def _progress(self, text: str) -> bool:
        self._report(text)
        return True
