"""Where a page of records ends, and the next one begins: by key instead of OFFSET."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from django.db.models import Model, QuerySet

from ..exceptions import InvalidOption

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
Record = TypeVar("Record", bound=Model)


@dataclass(frozen=True, slots=True)
class Key:
    """Where a page ends: the time and id of its last record."""

    at: datetime
    id: str

    def text(self) -> str:
        return f"{(self.at - EPOCH) // MICROSECOND}.{self.id}"


def parse_key(text: str) -> Key | None:
    """What ``Key.text`` wrote, None for ''. Raises InvalidOption."""
    if not text:
        return None
    micros, _, job_id = text.partition(".")
    if not micros.isdecimal() or len(micros) > 17 or not job_id:
        raise InvalidOption(f"after: {text!r} is no place in the records; begin at the first page")
    return Key(EPOCH + int(micros) * MICROSECOND, job_id)


def behind(records: QuerySet[Record], instant: str, key: Key) -> QuerySet[Record]:
    """Those that come after the key, newest first by the column ``instant`` and then by id."""
    # Not an OR of two ranges: that keeps planners from walking the index.
    found = records.filter(**{f"{instant}__lte": key.at})
    return found.exclude(**{instant: key.at, "id__gte": key.id})
