"""``exactly_once``: a job's database work and its receipt commit together, or neither does.

A redelivered job (its worker died between the commit and the report) finds the receipt and returns
the stored result without running. If two runs overlap (a worker was wrongly taken for dead), only
one can commit the receipt; the other's work is rolled back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from django.db import Error as DatabaseError
from django.db import IntegrityError, connections, transaction

from ..client.enqueue import through_outbox
from ..models import Receipt

logger = logging.getLogger("django_redisqueue")


class _AlreadyCommitted(Exception):
    """Another run of the job has committed first."""


def run_once(job_id: str, alias: str, work: Callable[[], str]) -> str:
    """The result (JSON) of ``work``, run in a transaction unless the job has a receipt already.

    Raises what ``work`` or the database raises, and then nothing was committed. If the transaction
    may have committed despite an error (the connection was lost during the commit, or an
    ``on_commit`` hook raised), the receipt decides.
    """
    try:
        return _run(job_id, alias, work)
    except BaseException as error:
        stored = _after_error(job_id, alias, error)
        if stored is None:
            raise
        if not isinstance(error, _AlreadyCommitted):
            logger.warning(
                "job %s has its receipt, although this run raised:", job_id, exc_info=error
            )
        return stored


def _run(job_id: str, alias: str, work: Callable[[], str]) -> str:
    with through_outbox(), transaction.atomic(using=alias):
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
    return result


def stored_result(job_id: str, alias: str) -> str | None:
    """The result in the job's receipt, or None."""
    found = Receipt._base_manager.using(alias).filter(pk=job_id)
    return found.values_list("result", flat=True).first()


def _after_error(job_id: str, alias: str, error: BaseException) -> str | None:
    connection = connections[alias]
    if connection.in_atomic_block:
        return None  # a test's transaction, which never commits
    try:
        connection.close_if_unusable_or_obsolete()
        return stored_result(job_id, alias)
    except DatabaseError as second:
        error.add_note(f"It is unknown whether the job has committed: {second}")
        return None
