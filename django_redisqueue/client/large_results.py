"""Results too large for Redis: files in ``STORAGES["redisqueue"]``, or else the default storage.

The storage may hold other files, and whoever can write to Redis chooses the names that are read and
deleted here. So only files in a folder named FOLDER are touched.
"""

from __future__ import annotations

import re
from typing import Any

from django.core.exceptions import SuspiciousFileOperation
from django.core.files.base import ContentFile
from django.core.files.storage import Storage, default_storage, storages

from ..core.codec import loads, stored_name
from ..exceptions import ResultGone

ALIAS = "redisqueue"
FOLDER = "redisqueue"
_OURS = re.compile(rf"(?:\w[\w.-]*/)*{FOLDER}/\w[\w.-]*")  # storages may add folders above it


def storage() -> Storage:
    return storages[ALIAS] if ALIAS in storages.backends else default_storage


def free_name(job_id: str, lease: int) -> str:
    """An unused file name for the result of one run of a job."""
    return storage().get_available_name(f"{FOLDER}/{job_id}.{lease}.json")


def write_result(name: str, text: str) -> str:
    """Store a result (JSON); returns the name that the storage chose. Raises storage errors, and
    SuspiciousFileOperation for a name that is not in the folder."""
    saved = storage().save(name, ContentFile(text.encode()))
    if not _OURS.fullmatch(saved):
        storage().delete(saved)  # nothing else would
    return _checked(saved)


def decode_result(text: str) -> Any:
    """A result from its JSON in Redis. Raises ValueError, ResultGone, and storage errors."""
    name = stored_name(text)
    return read_result(name) if name else loads(text)


def read_result(name: str) -> Any:
    """Read a stored result. Raises ResultGone, and storage errors."""
    try:
        with storage().open(_checked(name)) as file:
            return loads(file.read().decode())
    except FileNotFoundError:
        raise ResultGone(
            f"the result was in the file {name!r}, which was deleted with its gather, when Redis "
            "pruned its job, or manually; read it earlier, or keep the gather or the job longer "
            "(ttl, RESULT_TTL)"
        ) from None


def delete_result(name: str) -> None:
    """Delete a stored result; it need not exist. A file that is no result is left alone."""
    if _OURS.fullmatch(name):
        storage().delete(name)


def _checked(name: str) -> str:
    if not _OURS.fullmatch(name):
        raise SuspiciousFileOperation(
            f"{name!r} is not the name of a result: those are in a folder named {FOLDER!r}"
        )
    return name
