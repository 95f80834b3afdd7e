"""Plugs the database into the ports. Loaded once models can be."""

from __future__ import annotations

from .conf import get_settings
from .core.job_data import JobData
from .core.ports import ports
from .mirror import archive
from .models.periodic import enabled_rows
from .outbox import rows


@rows.sync_only
def find(job_id: str, *, in_outbox: bool) -> JobData | None:
    """A job that Redis does not have: it was pruned, or it is still in the outbox."""
    settings = get_settings()
    if not (settings.mirror or settings.outbox or in_outbox):
        return None  # the settings say that neither table has it
    return archive.find(job_id) or rows.find(job_id)


ports.outbox = rows.DatabaseOutbox()
ports.archive = find
ports.records = rows.sync_only(archive.matching)
ports.schedule_rows = enabled_rows
