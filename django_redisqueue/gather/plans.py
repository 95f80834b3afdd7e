"""The plan of a gather: checked, and sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ..batches import MAX_CALL_BYTES
from ..bounds import is_whole
from ..callbacks import callback_fields, check_callback
from ..clock import Duration, to_ms
from ..codec import encode_payload
from ..conf import did_you_mean, get_settings
from ..connection import insist, producer_link
from ..exceptions import GatherError, GatherExists, InvalidOption, shown
from ..gatherdata import GatherListener, GatherPlan
from ..ids import new_gather_id
from ..options import check_whole
from ..ports import replaced_transport
from ..store.transitions import Transitions
from ..store.verbs import BATCH
from ..submit import Way, after_commit, in_atomic, submit, way_of
from ..tasks import DjangoTask, Signature, Task, task
from .listeners import check_payload, listeners_of, topics

MAX_POLLS = 10_000


@task(
    name="django_redisqueue.start_gather",
    max_attempts=100,
    no_retry_on=(GatherExists,),
    redact=("plan",),
)
def start_gather(plan: Sequence[Any]) -> None:
    """Start a gather; starting it again changes nothing. A task, for one that Redis did not take
    comes back from the outbox. Raises GatherExists."""
    made = GatherPlan(*plan)
    transport = replaced_transport()
    code = (
        insist(lambda: Transitions(producer_link()).gather(made))
        if transport is None
        else transport.gather(made)
    )
    if code < 0:
        raise GatherExists(
            f"the key {made.key!r} has a gather that is not forgotten yet (it is about its ttl "
            "after its end); give each gather its own key"
        )


def send(plan: GatherPlan, on_commit: bool | None) -> None:
    """Start a gather: now, or after the commit of what is open."""
    way = way_of(on_commit, None)
    if not (way.waits and (way.stored or in_atomic())):
        start_gather(plan)
        return
    later = start_gather.s(plan).new_job()  # now: after the commit it must not be refused
    if way.stored and replaced_transport() is None:
        submit((later,), way)
    else:
        after_commit(partial(start_gather, plan), Way(True, False), lambda: later)


def make_plan(
    key: str,
    *,
    topic: str,
    payload: Mapping[str, Any] | None,
    threshold: int | None,
    ttl: Duration,
    polls: int,
    poll_delay: Duration,
    then: Task | Signature | DjangoTask,
    on_failure: Task | Signature | DjangoTask | None,
) -> GatherPlan:
    """The plan of a new gather. Raises GatherError, InvalidOption, InvalidArguments,
    PayloadTooLarge."""
    found = listeners_of(topic)
    keywords = check_payload(payload)
    _check_listeners(topic, found)
    ttl_ms, poll_delay_ms = _at_least_1(ttl, "ttl"), _at_least_1(poll_delay, "poll_delay")
    settings = get_settings()
    limit = min(settings.max_payload_bytes, MAX_CALL_BYTES // len(found))
    text = encode_payload((), keywords, limit, f"the listeners of {topic!r}")
    fields = [
        "threshold", str(_check_threshold(threshold, topic, len(found))),
        "ttl_ms", str(ttl_ms), "keep_ms", str(_keep_ms()), "poll_delay_ms", str(poll_delay_ms),
        "polls", str(check_whole(polls, "polls", 1, MAX_POLLS)),
        *callback_fields("then", check_callback(then, "then", keywords)),
    ]  # fmt: skip
    if on_failure is not None:
        fields += callback_fields("failure", check_callback(on_failure, "on_failure", keywords))
    listeners = [_listener(name, found[name], keywords) for name in found]
    return GatherPlan(key, new_gather_id(), ttl_ms, poll_delay_ms, text, fields, listeners)


def _listener(name: str, listening: Task, keywords: Mapping[str, Any]) -> GatherListener:
    job = Signature(listening, (), keywords).new_job()
    return GatherListener(name, job.queue, job.task, job.options, job.priority, job.audit)


def _keep_ms() -> int:
    """How long the results stay for a retry by hand of what followed: as long as failed jobs."""
    return max(queue.failed_ttl_ms for queue in get_settings().queues.values())


def _check_listeners(topic: str, found: Mapping[str, Task]) -> None:
    if not found:
        raise GatherError(
            f"the topic {topic!r} has no listener{did_you_mean(topic, topics())}; subscribe a "
            f"function with @listener({topic!r}) in a module named tasks of an installed app"
        )
    if len(found) > BATCH:
        raise GatherError(
            f"the topic {topic!r} has {len(found)} listeners, and a gather takes {BATCH} at most; "
            "let each of them ask for more, or use a workflow"
        )


def _check_threshold(value: object, topic: str, listeners: int) -> int:
    if value is None:
        return listeners
    if is_whole(value, 1, listeners):
        return value
    raise GatherError(
        f"threshold must be a whole number from 1 to {listeners}, for so many listeners has the "
        f"topic {topic!r}, or None for all of them; not {shown(value)}"
    )


def _at_least_1(value: object, what: str) -> int:
    ms = to_ms(value, what)
    if ms < 1:
        raise InvalidOption(f"{what} must be longer than 0, not {shown(value)}")
    return ms
