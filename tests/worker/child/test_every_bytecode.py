"""An interrupt at each place of a commit at which Python may raise one leaves nothing half done."""

from __future__ import annotations

import dis
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from django.db import connection, transaction

from django_redisqueue import JobQueue, task
from django_redisqueue.broker.replies import OutcomeKind
from django_redisqueue.worker.child.executor import Execution, Executor
from django_redisqueue.worker.child_state import ChildState
from django_redisqueue.worker.interrupts import Interrupts
from tests.app import tasks
from tests.app.models import Counter
from tests.support.postgres import as_database
from tests.worker.parts import claimed
from tests.worker.test_interrupts import installed

from .test_thread_runner import PIPELINE

CALLS = {n for n, name in enumerate(dis.opname) if name.startswith(("CALL", "JUMP_BACKWARD"))}


class Places:
    """Counts the places at which Python looks for signals, from ``begin`` on, and calls ``act`` at
    number ``at``: where a function begins, after a call of C code, and where a loop goes back."""

    def __init__(self, at: int, act: Callable[[], object]) -> None:
        self.left = at
        self._act = act
        self._last: dict[FrameType, int] = {}  # the last bytecode of each frame
        self._returned_to: FrameType | None = None

    def begin(self) -> None:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not Executor.run.__code__:
            frame.f_trace, frame.f_trace_opcodes = self._trace, True
            frame = frame.f_back
        sys.settrace(self._trace)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "call":
            frame.f_trace_opcodes = True
            self._count()
        elif event == "return":
            self._returned_to = frame.f_back
        elif event == "opcode":
            last, self._last[frame] = self._last.get(frame, 0), frame.f_code.co_code[frame.f_lasti]
            if last in CALLS and self._returned_to is not frame:
                self._count()
            self._returned_to = None if self._returned_to is frame else self._returned_to
        return self._trace if self.left else None

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            sys.settrace(None)
            self._act()


@task
def change_and_enqueue(begin: Callable[[], None]) -> None:
    with transaction.atomic():
        Counter.objects.create(name="changed")
        tasks.noop.enqueue()
        begin()


@pytest.fixture
def database(tmp_path: Path, migrated: Path, django_db_blocker: Any) -> Iterator[None]:
    """A persistent connection to a file of SQLite, which opens transactions that Django does not
    know of more easily than other databases."""
    path = shutil.copy(migrated / "default.sqlite3", tmp_path)
    entry = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path), "CONN_MAX_AGE": None}
    with django_db_blocker.unblock(), as_database("default", entry):
        yield


def run(executor: Executor, state: ChildState, interrupts: Interrupts, at: int) -> int:
    """Interrupt the job at this place. Returns how many places were missing to get there."""
    job = claimed(f"job_{at}")

    def interrupt() -> None:
        state.send(f"cancel {job.id} {job.lease}")
        interrupts._on_message(0, None)

    places = Places(at, interrupt)
    state.offer([job])
    execution = Execution(job, change_and_enqueue, [places.begin], {}, 0, 1)
    tokens = [state.take() or b""]
    try:
        # In a generator, which has an exception state of its own: unlike a signal, an interrupt may
        # come here between the end of an except block and its cleanup, which leaves that state set.
        outcome = next(executor.run(execution, token) for token in tokens)
    finally:
        sys.settrace(None)
    assert outcome.kind in (OutcomeKind.CANCELLED, OutcomeKind.COMPLETED), outcome.body
    return places.left


@pytest.mark.usefixtures("queue_settings", "database")
def test_a_transaction_commits_and_its_jobs_are_sent_or_neither() -> None:
    state, left, at = ChildState(0, 1), 0, 0
    with installed(state) as interrupts:
        executor = Executor(PIPELINE, state, interrupts, job_redis=None)  # type: ignore[arg-type]
        run(executor, state, interrupts, 0)  # opens the connections
        connection.cursor().execute("PRAGMA synchronous = OFF")
        while not left:
            at += 1
            before = Counter.objects.all().delete()[0], JobQueue().get_stats()["queued"]
            left = run(executor, state, interrupts, at)
            assert not connection.in_atomic_block
            assert connection.get_autocommit()
            assert not connection.run_on_commit
            with transaction.atomic():  # fails inside another transaction
                changed = Counter.objects.count()
            assert JobQueue().get_stats()["queued"] - before[1] == changed, f"at place {at}"
    assert at > 50
    assert sys.exception() is None  # otherwise tracebacks of later tests would begin with it
