"""Steps whose database work happens once: the receipt of a step commits with its rows.

If the worker dies between the commit and the report to Redis, the next run finds the receipt. Two
runs that overlap cannot both commit the same step: the receipt is unique, and a cursor only moves
on from the version that its run has read.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.utils import timezone

from ..client.enqueue import in_atomic, through_outbox
from ..exceptions import JobAbandoned, StepError
from ..models import StepReceipt
from .receipts import UnitOfWork, current_unit

Guard = Callable[[], AbstractContextManager[None]]  # no interrupt is raised inside it


def run_step(job_id: str, name: str, alias: str, work: Callable[[], str], guard: Guard) -> str:
    """The result (JSON) of ``work``, run in a transaction unless the step has a receipt already.

    In an ``exactly_once`` job the transaction is that of the job. Raises StepError inside
    ``atomic()``, JobAbandoned when another run of the job was faster, and what ``work`` raises.
    """
    unit = current_unit()
    if unit is not None:
        unit.check()
        alias = unit.alias
    elif in_atomic():
        raise StepError(
            "a step with atomic=True commits, which is impossible inside atomic(): call it outside "
            "of the block"
        )
    found = _receipts(job_id, name, alias).values_list("body", flat=True).first()
    if found is not None:
        return found
    if unit is not None:
        text = work()
        _create(job_id, name, alias, text)
        with guard():
            unit.commit()
        return text
    with through_outbox(), transaction.atomic(using=alias):
        text = work()
        _create(job_id, name, alias, text)
    return text


class CursorReceipt:
    """The cursor of an ``exactly_once`` job, in its transaction."""

    def __init__(self, unit: UnitOfWork, name: str, guard: Guard) -> None:
        unit.check()
        unit.has_steps = True
        self._unit = unit
        self._name = name
        self._guard = guard
        self._version = 0

    def read(self) -> str | None:
        """The cursor, or None before the first commit."""
        found = self._row().first()
        if found is None:
            return None
        self._version = found.version
        return found.body

    def write(self, body: str) -> None:
        """Commit the cursor with what was done so far. Raises JobAbandoned when another run of the
        job was faster; then this run's rows are rolled back."""
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
        with self._guard():
            unit.commit()

    def _row(self) -> QuerySet[StepReceipt]:
        return _receipts(self._unit.job_id, self._name, self._unit.alias)


def _receipts(job_id: str, name: str, alias: str) -> QuerySet[StepReceipt]:
    return StepReceipt._base_manager.using(alias).filter(job_id=job_id, name=name)


def _create(job_id: str, name: str, alias: str, body: str) -> None:
    try:
        StepReceipt._base_manager.using(alias).create(job_id=job_id, name=name, body=body)
    except IntegrityError as error:
        raise _overtaken(job_id) from error


def _overtaken(job_id: str) -> JobAbandoned:
    return JobAbandoned(f"another run of job {job_id} has committed this step")
