"""``exactly_once``: a job's database work and its receipt commit together, or neither does.

A job delivered again (its worker died between the commit and the report) finds the receipt and
returns the stored result without running. Two that run at once (a worker that was taken for dead)
both work, but only one can commit the receipt; the other's work is rolled back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from django.db import Error as DatabaseError
from django.db import IntegrityError, connections, transaction

from .models import Receipt
from .submit import through_outbox

logger = logging.getLogger("django_redisqueue")


class _Twin(Exception):
    """Another run of the job has committed first."""


def run_once(job_id: str, alias: str, work: Callable[[], str]) -> str:
    """The result (JSON) of ``work``, run in a transaction unless the job has a receipt already.

    Raises what ``work`` or the database raises, and then nothing was committed: after an error
    whose transaction may have gone through (the connection was lost in its commit, or a hook of
    ``on_commit`` raised), the receipt tells.
    """
    try:
        return _run(job_id, alias, work)
    except BaseException as error:
        stored = _after_error(job_id, alias, error)
        if stored is None:
            raise
        if not isinstance(error, _Twin):
            logger.warning(
                "job %s has its receipt, though this run ended so:", job_id, exc_info=error
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
            raise _Twin(f"another run of job {job_id} has committed its receipt") from error
    return result


def stored_result(job_id: str, alias: str) -> str | None:
    """What the job's receipt has, or None."""
    found = Receipt._base_manager.using(alias).filter(pk=job_id)
    return found.values_list("result", flat=True).first()


def _after_error(job_id: str, alias: str, error: BaseException) -> str | None:
    connection = connections[alias]
    if connection.in_atomic_block:
        return None  # in a test's transaction, which has not committed
    try:
        connection.close_if_unusable_or_obsolete()
        return stored_result(job_id, alias)
    except DatabaseError as second:
        error.add_note(f"whether the job has committed could not be seen: {second}")
        return None
