"""What a reconcile writes, in parts that the database takes."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from django.db import Error

from ..store.events import Event, Fault
from ..store.flowevents import FlowEvent
from .health import CONTENT_ERRORS, Blame, blame
from .writer import Cursor, TooLarge, Writer

logger = logging.getLogger("django_redisqueue")


def write_in_parts(events: Sequence[Event] | Sequence[FlowEvent], to: Writer, at: Cursor) -> None:
    """Write these, leaving the cursor where it is; what the database refuses is left out.

    Raises Overtaken, RedisQueueError or django.db.Error.
    """
    if not events:
        return
    try:
        to.write(
            [event for event in events if isinstance(event, Event)], at, at.position,
            [event for event in events if isinstance(event, FlowEvent)],
        )  # fmt: skip
        return
    except TooLarge as error:
        middle = error.fits
    except (*CONTENT_ERRORS, Error) as error:
        if blame(error, to.alias) is not Blame.CONTENT:
            raise
        if len(events) == 1:
            whose = f"{_whose(events[0])} cannot be reconciled: the database refuses it: {error!r}"
            report([whose], to, at)
            return
        middle = len(events) // 2
    write_in_parts(events[:middle], to, at)
    write_in_parts(events[middle:], to, at)


def report(problems: Sequence[str], to: Writer, at: Cursor) -> None:
    """Log and count what could not be read or written."""
    for problem in problems:
        logger.error("mirror: %s", problem)
    to.note([Fault(at.position, problem) for problem in problems])


def _whose(event: Event | FlowEvent) -> str:
    return f"job {event.job_id}" if isinstance(event, Event) else f"workflow {event.workflow_id}"
