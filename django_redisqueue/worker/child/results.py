"""Encodes results for their report. A gather's result that is too large for Redis becomes a file.

First the name of the file is recorded in Redis, then the file is written, then the job is reported
with that name. So if a process dies in between, the file is deleted with its gather
(maintenance/upkeep.py).
"""

from __future__ import annotations

from ...broker.commands import Commands
from ...broker.connection import worker_connection
from ...broker.replies import ClaimedJob
from ...broker.retry import retry_until_answered
from ...client.large_results import free_name, write_result
from ...client.transport import transport
from ...conf import Settings
from ...core.codec import encode_result, encode_stored
from ...exceptions import InvalidArguments, JobAbandoned, PayloadTooLarge
from .retry_policy import UnstorableResult

NO_LIMIT = 2**63


def is_gather_listener(job_id: str) -> bool:
    """True if the job is a listener of a gather."""
    return job_id.startswith("gather_") and job_id.rpartition(".")[2].isdigit()


def encode(result: object, job: ClaimedJob, settings: Settings) -> str:
    """The result as JSON, as it is reported.

    Raises UnstorableResult, JobAbandoned, and whatever the file storage raises.
    """
    try:
        return encode_result(result, settings.max_result_bytes, job.task)
    except (InvalidArguments, PayloadTooLarge) as error:
        if isinstance(error, InvalidArguments) or not is_gather_listener(job.id):
            raise UnstorableResult(error) from error
    text = encode_result(result, NO_LIMIT, job.task)
    if transport().in_memory:
        return text
    return encode_stored(_store(text, job, settings))


def _store(text: str, job: ClaimedJob, settings: Settings) -> str:
    """Write the file. Returns its name, which is recorded again if the storage has changed it."""
    store = Commands(worker_connection(), settings)
    try:
        wanted = free_name(job.id, job.lease)
        _record_file(store, job, wanted)
        name = write_result(wanted, text)
        if name != wanted:
            _record_file(store, job, name)
        return name
    finally:
        store.connection.close()


def _record_file(store: Commands, job: ClaimedJob, name: str) -> None:
    code = retry_until_answered(
        lambda _: store.record_result_file(job.id, job.lease, name), who=job.id
    )
    if code == 0:
        raise JobAbandoned(f"job {job.id} was taken over by another worker")
    if code < 0:
        problem = PayloadTooLarge(
            f"the result of {job.task} is over REDISQUEUE['MAX_RESULT_BYTES'], and its gather is "
            "over and forgotten, so nobody would delete its file; start another gather"
        )
        raise UnstorableResult(problem)
