"""Receipts: the database work of an ``exactly_once`` job, or of a step of any job, commits together
with its receipt, or neither does.

A redelivered job (whose worker died between the commit and the report) finds the receipt and
returns the stored result without running. If two runs overlap (a worker was wrongly assumed dead),
only one can commit: the receipt is unique, and a cursor only advances from the version that its run
has read. The other run's work is rolled back.

Steps of such a job commit what it has done so far; the rest continues in a new transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from contextvars import ContextVar
from functools import partial
from typing import Any

from django.db import Error as DatabaseError
from django.db import IntegrityError, connections, transaction
from django.db.models import QuerySet
from django.utils import timezone

from ..client.enqueue import in_atomic, through_outbox
from ..core.interrupts import interrupt_shield
from ..exceptions import JobAbandoned, StepError, first_line
from ..models import Receipt, StepReceipt

logger = logging.getLogger("django_redisqueue")


class _AlreadyCommitted(Exception):
    """Another run of the job has committed first."""


class UnitOfWork:
    """The transaction of an ``exactly_once`` job, which its steps commit in parts."""

    def __init__(self, job_id: str, alias: str) -> None:
        self.job_id = job_id
        self.alias = alias
        self.has_steps = False
        self.may_commit = False  # the receipt is written, so a commit may have been attempted

    def __enter__(self) -> UnitOfWork:
        self._begin()
        self._token = _current.set(self)
        return self

    def __exit__(self, *error: Any) -> None:
        _current.reset(self._token)
        self._transaction.__exit__(*error)

    def _begin(self) -> None:
        self._transaction = _transaction(self.alias)
        self._block = connections[self.alias].atomic_blocks[-1]

    def check(self) -> None:
        """Raise StepError inside an ``atomic()`` or a step of the task, where nothing can be
        committed."""
        if connections[self.alias].atomic_blocks[-1] is not self._block:
            raise StepError(
                "a step or iterate of an exactly_once task commits what was done so far, which is "
                "impossible inside atomic() or another step: call it outside the block"
            )

    def commit(self) -> None:
        """Commit what was done so far, and begin the next part, even if the commit fails: the task
        may catch the error and continue. Raises JobAbandoned, which it does not catch, if the next
        part cannot begin, because the rest would then commit without its receipt."""
        self.check()
        try:
            self._transaction.close()
        finally:
            try:
                self._begin()
            except Exception as error:  # also one of a receiver of connection_created
                raise JobAbandoned(
                    f"job {self.job_id} has no transaction: {first_line(error)}"
                ) from error


def _transaction(alias: str) -> ExitStack:
    """Begin a transaction that commits all of its statements or none.

    After a deadlock MySQL has rolled back the transaction, and the next statement starts another
    one. If the task caught that error, the rest of its work would commit alone. But the savepoint
    of an inner block is then gone, which fails that block.
    """
    with ExitStack() as blocks:
        for _ in range(2 if connections[alias].vendor == "mysql" else 1):
            blocks.enter_context(transaction.atomic(using=alias))
        return blocks.pop_all()


_current: ContextVar[UnitOfWork | None] = ContextVar("redisqueue_unit_of_work", default=None)


def current_unit() -> UnitOfWork | None:
    """The transaction of the ``exactly_once`` job that is running here, or None."""
    return _current.get()


def run_once(job_id: str, alias: str, work: Callable[[], str]) -> str:
    """The result (JSON) of ``work``, run in a transaction unless the job already has a receipt.

    Raises whatever ``work`` or the database raises, in which case nothing was committed. If the
    transaction may have committed despite an error (the connection was lost during the commit, or
    an ``on_commit`` hook raised), the receipt decides.
    """
    unit = UnitOfWork(job_id, alias)
    try:
        return _run(unit, work)
    except BaseException as error:
        if connections[alias].in_atomic_block:  # a test's transaction, which never commits
            raise
        committed = "the job" if unit.may_commit else ""
        stored = _after_error(alias, error, committed, partial(stored_result, job_id, alias))
        if stored is None:
            raise
        if not isinstance(error, _AlreadyCommitted):
            #: An exactly_once job raised after its work had committed, in an on_commit hook or
            #: because the connection broke. It counts as completed, and does not run again. The
            #: traceback shows what to fix in the hook.
            logger.warning(
                "job %s has its receipt, although this run raised:", job_id, exc_info=error
            )
        return stored


def _run(unit: UnitOfWork, work: Callable[[], str]) -> str:
    job_id, alias = unit.job_id, unit.alias
    with through_outbox(), unit:
        stored = stored_result(job_id, alias)
        if stored is not None:
            return stored
        result = work()
        try:
            Receipt._base_manager.using(alias).create(job_id=job_id, result=result)
        except IntegrityError as error:
            raise _AlreadyCommitted(
                f"another run of job {job_id} has committed its receipt"
            ) from error
        unit.may_commit = True
        if unit.has_steps:
            StepReceipt._base_manager.using(alias).filter(job_id=job_id).delete()
    return result


def stored_result(job_id: str, alias: str) -> str | None:
    """The result in the job's receipt, or None."""
    found = Receipt._base_manager.using(alias).filter(pk=job_id)
    return found.values_list("result", flat=True).first()


def _after_error(
    alias: str, error: BaseException, what: str, stored: Callable[[], str | None]
) -> str | None:
    """What the receipt stores if ``what`` has committed despite an error, or None. "" if it did not
    get as far as its commit, so that only another run can have a receipt."""
    connection = connections[alias]
    try:
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
        return stored()
    except DatabaseError as second:
        if what:
            error.add_note(f"It is unknown whether {what} has committed: {second}")
        return None


def run_step(job_id: str, name: str, alias: str, work: Callable[[], str]) -> str:
    """The result (JSON) of ``work``, run in a transaction unless the step already has a receipt.

    In an ``exactly_once`` job the transaction is the job's. An error undoes only the step's rows,
    because the task may catch it and continue. After an error of the commit, the receipt decides,
    as in ``run_once``. Raises StepError inside ``atomic()``, JobAbandoned if another run of the job
    was faster, and whatever ``work`` raises.
    """
    unit = current_unit()
    if unit is not None:
        unit.check()
        alias = unit.alias
    elif in_atomic():
        raise StepError(
            "a step with atomic=True commits, which is impossible inside atomic(): call it outside "
            "the block"
        )
    found = _stored_body(job_id, name, alias)
    if found is not None:
        return found
    written = None
    try:
        with through_outbox(), _transaction(alias):
            text = work()
            _create(job_id, name, alias, text)
            written = text
        if unit is not None:
            with interrupt_shield.get()():
                unit.commit()
    except Exception as error:
        if written is None:
            raise
        if _after_error(alias, error, name, partial(_stored_body, job_id, name, alias)) is None:
            raise
        #: A step raised after its transaction had committed, in an on_commit hook or because the
        #: connection broke. It is done, and the job continues. The traceback shows what to fix in
        #: the hook.
        logger.warning(
            "job %s has the receipt of %s, although it raised:", job_id, name, exc_info=error
        )
    return text


class CursorReceipt:
    """The cursor of an ``exactly_once`` job, in its transaction."""

    def __init__(self, unit: UnitOfWork, name: str) -> None:
        unit.check()
        unit.has_steps = True
        self._unit = unit
        self._name = name
        self._version = 0

    def read(self) -> str | None:
        """The cursor, or None before the first commit."""
        found = self._row().first()
        if found is None:
            return None
        self._version = found.version
        return found.body

    def write(self, body: str) -> None:
        """Commit the cursor with what was done so far. Raises JobAbandoned if another run of the
        job was faster; this run's rows are then rolled back."""
        unit = self._unit
        unit.check()
        if self._version == 0:
            _create(unit.job_id, self._name, unit.alias, body)
        else:
            moved = (
                self._row()
                .filter(version=self._version)
                .update(body=body, version=self._version + 1, updated_at=timezone.now())
            )
            if not moved:
                raise _overtaken(unit.job_id)
        self._version += 1
        with interrupt_shield.get()():
            unit.commit()

    def _row(self) -> QuerySet[StepReceipt]:
        return _receipts(self._unit.job_id, self._name, self._unit.alias)


def _stored_body(job_id: str, name: str, alias: str) -> str | None:
    return _receipts(job_id, name, alias).values_list("body", flat=True).first()


def _receipts(job_id: str, name: str, alias: str) -> QuerySet[StepReceipt]:
    return StepReceipt._base_manager.using(alias).filter(job_id=job_id, name=name)


def _create(job_id: str, name: str, alias: str, body: str) -> None:
    try:
        StepReceipt._base_manager.using(alias).create(job_id=job_id, name=name, body=body)
    except IntegrityError as error:
        raise _overtaken(job_id) from error


def _overtaken(job_id: str) -> JobAbandoned:
    return JobAbandoned(f"another run of job {job_id} has committed this step")
