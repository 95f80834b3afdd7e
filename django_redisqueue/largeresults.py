"""Results that are too large for Redis: kept as files in Django's storage.

The storage is ``STORAGES["redisqueue"]`` if there is one, else the default one.
"""

from __future__ import annotations

from typing import Any

from django.core.files.base import ContentFile
from django.core.files.storage import Storage, default_storage, storages

from .codec import loads
from .exceptions import ResultGone

ALIAS = "redisqueue"
FOLDER = "redisqueue"


def storage() -> Storage:
    """Where large results are kept."""
    return storages[ALIAS] if ALIAS in storages.backends else default_storage


def free_name(job_id: str, lease: int) -> str:
    """A name that no file has, for the result of one run of a job."""
    return storage().get_available_name(f"{FOLDER}/{job_id}.{lease}.json")


def write_result(name: str, text: str) -> str:
    """Keep a result (JSON); the name that the storage gave it. Raises what the storage raises."""
    return storage().save(name, ContentFile(text.encode()))


def read_result(name: str) -> Any:
    """A result that was kept. Raises ResultGone, and what the storage raises."""
    try:
        with storage().open(name) as file:
            return loads(file.read().decode())
    except FileNotFoundError:
        raise ResultGone(
            f"the result was in the file {name!r}, which was deleted when its gather was "
            "forgotten (or by somebody); read it before, or give the gather a longer ttl"
        ) from None


def delete_result(name: str) -> None:
    """Delete a kept result; one that is not there is no error."""
    storage().delete(name)
