"""What running jobs ask of Redis, on connections apart from those of the child's main loop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ...broker.commands import Commands
from ...broker.connection import RedisConnection, retry_once, worker_connection
from ...broker.failures import retry_until_answered, retry_while_unavailable
from ...broker.replies import ClaimedJob, WaitReply, WaitState
from ...broker.steps import StepQueries
from ...broker.workflows import WorkflowQueries
from ...client.large_results import decode_result
from ...conf import Settings
from ...core.codec import stored_name
from ...core.ids import shard_of_id
from ...core.interrupts import interrupt_shield
from ...core.parsing import int64_or_none
from ...exceptions import JobAbandoned, RedisRefused, RedisUnavailable
from .context import Report

logger = logging.getLogger("django_redisqueue")
FILE_SECONDS = 300.0  # for reading the file of a large result, before the child is killed


class JobRedis:
    """What running jobs ask of Redis, such as their steps: a ``StepStore``.

    All methods but ``report`` wait while Redis is unavailable. A master that has no record of the
    run may be a former one, so it is not asked again. Any thread may call these methods.
    """

    def __init__(
        self, child: str, settings: Settings, keep_alive: Callable[..., None] = lambda *_: None
    ) -> None:
        """``keep_alive`` is called before a job has started: while Redis is unavailable, and with
        the number of seconds that reading a file may take."""
        self._child = child
        self._settings = settings
        self._keep_alive = keep_alive
        is_only = settings.shards == 1
        self._passing = (RedisRefused, RedisUnavailable) if is_only else (RedisRefused,)
        self._unused: list[RedisConnection] = []  # as many as the most threads that asked at once

    def unknown_task_delays(self, job_id: str) -> int:
        """How often a job was delayed because its task was unknown."""
        with self._commands(job_id) as commands:
            key = commands.keys.job(job_id)
            delays = self._ask(lambda: commands.connection.call("HGET", key, "delays"))
        return max(0, int64_or_none(delays) or 0)

    def waited_since(self, job: ClaimedJob) -> tuple[int, int] | None:
        """The time from which a job's ``expires`` counts, and when the job was claimed."""
        with self._commands(job.id) as commands:
            queries = WorkflowQueries(commands.connection, self._settings)
            found: tuple[int, int] | None = self._ask(lambda: queries.waited_since(job.id))
            return found

    def parent_result(self, job_id: str) -> Any:
        """The result of the only parent of a job in a chain. Raises ResultGone and LeaseLost."""
        with self._commands(job_id) as commands:
            queries = WorkflowQueries(commands.connection, self._settings)
            found = self._ask(lambda: queries.parent_results(job_id, self._decode_result))
        return next(iter(found.values()), None)

    def _decode_result(self, text: str) -> Any:
        if stored_name(text):
            self._keep_alive(FILE_SECONDS)
        return decode_result(text)

    def _ask(self, question: Callable[[], Any]) -> Any:
        """Ask for a job that has not started. Waits while Redis refuses or is unavailable; with
        several shards it raises RedisUnavailable, because the child can run jobs of the others."""

        def ask(_: bool) -> Any:
            self._keep_alive()
            return retry_once(question)

        return retry_until_answered(
            ask, who=self._child, give_up=lambda error: not isinstance(error, self._passing)
        )

    def load(self, job: ClaimedJob) -> dict[str, str]:
        with self._commands(job.id) as commands:
            queries = StepQueries(commands.connection, self._settings)
            found = retry_while_unavailable(lambda: queries.steps(self._child, job.id, job.lease))
            if found is None:
                self._look_again(commands)
                raise JobAbandoned(f"job {job.id} was taken over by another worker")
            return found

    def save(self, job: ClaimedJob, field: str, value: str) -> int:
        with self._commands(job.id) as commands:
            code = retry_while_unavailable(
                lambda: commands.step(self._child, job.id, job.lease, field, value)
            )
            if code == 0:
                self._look_again(commands)
            return code

    def check_wait(self, job: ClaimedJob, event: str, ms: int | None, *, sleeps: bool) -> WaitReply:
        with self._commands(job.id) as commands:
            reply = retry_while_unavailable(
                lambda: commands.check_wait(
                    self._child, job.id, job.lease, event, ms, sleeps=sleeps
                )
            )
            if reply.state is WaitState.LEASE_LOST:
                self._look_again(commands)
            return reply

    def report(self, job: ClaimedJob, progress: str) -> bool:
        """Store the progress of a job, without waiting. False if its lease is lost."""
        with self._commands(job.id) as commands:
            is_ours = commands.progress(self._child, job.id, job.lease, progress)
            if not is_ours:
                self._look_again(commands)
            return is_ours

    @contextmanager
    def _commands(self, job_id: str) -> Iterator[Commands]:
        """The commands of a job's shard, on a connection that no other thread uses meanwhile."""
        unused = self._unused
        try:
            connection = unused.pop()
        except IndexError:
            connection = worker_connection()
        try:
            yield Commands(connection.at(shard_of_id(job_id)), self._settings)
        finally:
            unused.append(connection)

    def _look_again(self, commands: Commands) -> None:
        """Discard all connections: those of other threads may lead to the same former master."""
        commands.connection.look_again()
        self._unused = []


class LatestProgress:
    """The latest progress of a job that runs beside others, on its way to the thread that sends it.

    A job on an event loop must not wait for Redis, so it only leaves its progress here. ``wake``
    calls the progress thread. Once the job has ended, the reporter thread sends the last one, right
    before the outcome.
    """

    def __init__(self, send: Report, wake: Callable[[LatestProgress], None]) -> None:
        self._send = send
        self._wake = wake
        self._text = ""  # not sent yet; "" if everything was sent
        self._is_lost = False
        self._is_over = False
        self._guard = threading.Lock()  # guards the above; never held during a call to Redis
        self._sending = threading.Lock()  # one report at a time, so that they keep their order

    def give(self, text: str) -> bool:
        """Leave progress to be sent. False once the lease is lost or the job has ended."""
        with interrupt_shield.get()(), self._guard:
            if self._is_over or self._is_lost:
                return False
            is_first = not self._text
            self._text = text
        if is_first:
            self._wake(self)
        return True

    def send(self) -> None:
        """Send the latest progress. If that fails, wake the thread for another try."""
        with self._sending:
            if self._is_over:
                return
            try:
                self._send_latest()
            except Exception:
                self._wake(self)
                raise

    def end(self) -> None:
        """Accept no more progress: the job has ended."""
        with self._guard:
            self._is_over = True

    def send_last(self, *, waits: bool = True) -> None:
        """Send any remaining progress before the outcome. This waits while Redis is unavailable, as
        the outcome would, or raises RedisUnavailable; any other error is only logged, so that the
        outcome is not delayed."""
        with self._sending:
            try:
                retry_while_unavailable(self._send_latest) if waits else self._send_latest()
            except RedisUnavailable:
                raise
            except Exception as error:  # the outcome matters more
                #: The last progress that a job reported is not shown, but its outcome is. No action
                #: is needed.
                logger.warning("the last progress of a job could not be sent: %s", error)

    def _send_latest(self) -> None:
        with self._guard:
            text = self._text
        if not text:
            return
        is_ours = self._send(text)
        with self._guard:
            self._is_lost = not is_ours
            if self._text is text:
                self._text = ""
                return
        self._wake(self)  # in the meantime the job left newer progress without waking the thread
