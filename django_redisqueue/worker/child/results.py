"""Encodes results for their report. A result that is too large for Redis becomes a file if other
jobs read it: that of a gather's listener, of a job in a workflow, and of one that has followers.

First the name of the file is recorded in Redis, then the file is written, then the job is reported
with that name. So if a process dies in between, the file is deleted in the end
(maintenance/cleanup.py).
"""

from __future__ import annotations

from ...broker.commands import Commands
from ...broker.replies import ClaimedJob
from ...broker.retry import retry_until_answered
from ...client.large_results import free_name, write_result
from ...client.transport import transport
from ...conf import Settings
from ...core.codec import encode_result, encode_stored
from ...exceptions import InvalidArguments, JobAbandoned, PayloadTooLarge
from .job_redis import commands_of
from .retry_policy import UnstorableResult

NO_LIMIT = 2**63
SHARED = ("gather_", "flow_")  # how the ids of jobs begin whose results others read
NOT_SHARED = -2  # code of record_result_file.lua


def encode(result: object, job: ClaimedJob, settings: Settings) -> str:
    """The result as JSON, as it is reported.

    Raises UnstorableResult, JobAbandoned, and whatever the file storage raises.
    """
    try:
        return encode_within_cap(result, job, settings)
    except PayloadTooLarge as error:
        return encode_large(result, job, settings, error)


def encode_within_cap(result: object, job: ClaimedJob, settings: Settings) -> str:
    """``encode`` for results of up to MAX_RESULT_BYTES, which cause no I/O. Raises PayloadTooLarge
    for others, and UnstorableResult."""
    try:
        return encode_result(result, settings.max_result_bytes, job.task)
    except InvalidArguments as error:
        raise UnstorableResult(error) from error


def encode_large(
    result: object, job: ClaimedJob, settings: Settings, too_large: PayloadTooLarge
) -> str:
    """``encode`` for larger results. ``too_large``: the error if no other job reads it."""
    if not transport().in_memory:
        return encode_stored(_store(result, job, settings, too_large))
    if not job.id.startswith(SHARED):
        raise UnstorableResult(too_large) from too_large
    return encode_result(result, NO_LIMIT, job.task)


def _store(result: object, job: ClaimedJob, settings: Settings, too_large: PayloadTooLarge) -> str:
    """Write the file. Returns its name, which is recorded again if the storage has changed it."""
    with commands_of(job.id, settings) as store:
        wanted = free_name(job.id, job.lease)
        _record_file(store, job, wanted, too_large)
        name = write_result(wanted, encode_result(result, NO_LIMIT, job.task))
        if name != wanted:
            _record_file(store, job, name, too_large)
        return name


def _record_file(store: Commands, job: ClaimedJob, name: str, too_large: PayloadTooLarge) -> None:
    code = retry_until_answered(
        lambda _: store.record_result_file(job.id, job.lease, name), who=job.id
    )
    if code == NOT_SHARED:
        raise UnstorableResult(too_large) from too_large
    if code == 0:
        store.connection.look_again()  # perhaps this was the former master, cut off
        raise JobAbandoned(f"job {job.id} was taken over by another worker")
    if code < 0:
        problem = PayloadTooLarge(
            f"the result of {job.task} is over REDISQUEUE['MAX_RESULT_BYTES'], and its gather is "
            "over and forgotten, so nobody would delete its file; start another gather"
        )
        raise UnstorableResult(problem)
