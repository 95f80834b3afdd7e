"""Results as they are reported: of a gather's listener, one too large for Redis goes into a file.

First the file's name is noted in Redis, then the file is written, then the job is reported with its
name: whatever dies in between, the file is deleted when its gather is forgotten (sweeper.py).
"""

from __future__ import annotations

from ..codec import encode_result, encode_stored
from ..conf import Settings
from ..connection import worker_link
from ..exceptions import InvalidArguments, JobAbandoned, PayloadTooLarge
from ..largeresults import free_name, write_result
from ..ports import replaced_transport
from ..store.replies import Claimed
from ..store.transitions import Transitions
from .reconnect import until_answered
from .verdicts import Unstorable

NO_LIMIT = 2**63


def may_be_large(job_id: str) -> bool:
    """Whether a job is a listener of a gather."""
    return job_id.startswith("gather_") and job_id.rpartition(".")[2].isdigit()


def encode(result: object, job: Claimed, settings: Settings) -> str:
    """A result as it is reported. Raises Unstorable, JobAbandoned, and what the storage raises."""
    try:
        return encode_result(result, settings.max_result_bytes, job.task)
    except (InvalidArguments, PayloadTooLarge) as error:
        if isinstance(error, InvalidArguments) or not may_be_large(job.id):
            raise Unstorable(error) from error
    text = encode_result(result, NO_LIMIT, job.task)
    if replaced_transport() is not None:
        return text
    return encode_stored(_store(text, job, settings))


def _store(text: str, job: Claimed, settings: Settings) -> str:
    """Write the file; its name, which the storage may have changed: then it is noted as well."""
    store = Transitions(worker_link(), settings)
    try:
        asked = free_name(job.id, job.lease)
        _note(store, job, asked)
        name = write_result(asked, text)
        if name != asked:
            _note(store, job, name)
        return name
    finally:
        store.link.close()


def _note(store: Transitions, job: Claimed, name: str) -> None:
    code = until_answered(lambda _: store.stow(job.id, job.lease, name), who=job.id)
    if code == 0:
        raise JobAbandoned(f"job {job.id} was taken over by another worker")
    if code < 0:
        problem = PayloadTooLarge(
            f"the result of {job.task} is over REDISQUEUE['MAX_RESULT_BYTES'], and its gather is "
            "over and forgotten, so nobody would delete its file; start another gather"
        )
        raise Unstorable(problem)
