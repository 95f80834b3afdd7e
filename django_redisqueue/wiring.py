"""Fills the ports: what layer 3 may ask of the database. Loaded once models can be."""

from __future__ import annotations

from . import outbox
from .conf import get_settings
from .jobdata import JobData
from .mirror import archive
from .ports import filled


def find(job_id: str, *, is_stored: bool) -> JobData | None:
    """A job that Redis does not have: one that it has let go, or one on its way."""
    settings = get_settings()
    if not (settings.mirror or settings.outbox or is_stored):
        return None  # nothing to look into, as far as one can tell without a query
    return archive.find(job_id) or outbox.find(job_id)


filled.outbox = outbox.DatabaseOutbox()
filled.archive = find
filled.records = archive.matching
