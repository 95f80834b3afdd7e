"""Events: what running jobs wait for with ``context.wait_for``."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..conf import get_settings
from ..core.codec import capped, check, dumps
from ..core.ids import STEP_NAME
from ..core.job_data import APPROVAL
from ..exceptions import InvalidName, short_repr
from .decorator import task
from .enqueue import call_after_commit
from .transport import transport


def check_event(name: object) -> str:
    """Return ``name``; raise InvalidName unless it can name an application's event."""
    if not (isinstance(name, str) and STEP_NAME.fullmatch(name)):
        raise InvalidName(
            "an event's name must be a string of 1 to 100 letters, digits, spaces and "
            f". : @ / + = _ -, not {short_repr(name)}"
        )
    if name.startswith(APPROVAL):
        raise InvalidName(
            f"{name!r}: names with {APPROVAL!r} are reserved for context.approval, which is "
            "decided in the admin or by Approval.decide()"
        )
    return name


def send_event(name: str, payload: Any = None, *, on_commit: bool | None = None) -> None:
    """Send an event to the jobs that wait for it: their ``wait_for`` returns ``payload``.

    Inside a transaction the event is sent after the commit, as jobs are, and through the outbox if
    the settings say so. It is kept for EVENT_TTL for jobs that wait for it later. Raises
    InvalidName, InvalidArguments, PayloadTooLarge, RedisUnavailable or RedisRefused.
    """
    send(check_event(name), payload, on_commit)


def send_surely(event: str, payload: Any, queue: str) -> None:
    """Send one of this package's own events after the commit, by a job in the outbox."""
    if transport().in_memory:
        send(event, payload, on_commit=True)
    else:
        deliver_event.using(outbox=True, queue_name=queue).enqueue(event, dumps(payload))


def send(event: str, payload: Any, on_commit: bool | None = None) -> None:
    """Send an event without checking its name."""
    what, settings = f"the payload of event {event!r}", get_settings()
    check(payload, what)
    text = capped(dumps(payload), settings.max_payload_bytes, what, "MAX_PAYLOAD_BYTES")
    call_after_commit(
        partial(transport().send_event, event, text),
        lambda: deliver_event.using(queue_name=settings.own_queue).s(event, text).new_job(),
        on_commit,
    )


@task(name="django_redisqueue.send_event", max_attempts=100, redact=("payload",))
def deliver_event(event: str, payload: str) -> None:
    """A task, because an event that Redis refused after a commit is a job in the outbox."""
    transport().send_event(event, payload)
