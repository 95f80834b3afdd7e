"""A batch of events, collapsed to one change a job.

The order of what is known of a job is the pair (epoch, seq): a newer pair wins, also over a final
status (a requeue); an older one changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..codec import dumps
from ..histograms import add
from ..metrics import Sums
from ..parsing import mapping, text
from ..states import FINAL, Status
from ..store.events import Body, Event
from .tally import Tally

ERRING = frozenset({Status.RETRYING, Status.FAILED, Status.CANCELLED})
MOST_TYPE = 200  # characters
CLEARED = {
    "result": "", "error": "", "error_type": "", "reason": "", "progress": "", "worker": "",
    "due_at": None, "started_at": None, "finished_at": None,
}  # fmt: skip


class Known(NamedTuple):
    """What the mirror knows of a job; instants in ms."""

    epoch: int
    seq: int
    status: str
    queued_ms: int | None
    started_ms: int | None


class Change:
    """What becomes of one job's record: ``fields`` to write, their instants (``*_at``) in ms."""

    __slots__ = ("event", "fields", "is_new", "order", "queued_ms", "started_ms", "status")

    def __init__(self, known: Known | None, first: Event) -> None:
        self.event = first  # the last that was applied
        self.fields: dict[str, Any] = {}
        self.is_new = known is None
        if known is None:
            self.fields.update(task=first.task, queue=first.queue, enqueued_at=first.at_ms)
            known = _UNKNOWN
        self.order = (known.epoch, known.seq)
        self.status, self.queued_ms, self.started_ms = known[2:]

    @property
    def lacks(self) -> bool:
        """True when something stands only in the job's hash: it is too large for the stream, or
        the mirror has not seen the job's first event."""
        if self.is_new and "payload" not in self.fields:
            return True
        if self.status == Status.COMPLETED:
            return self.event.result is None
        return self.status in ERRING and self.event.error is None

    def fill(self, body: Body) -> None:
        """Take from the hash what the events did not carry; what it has not stays as it is."""
        event, fields = self.event, self.fields
        if self.is_new and "payload" not in fields:
            _fill_new(fields, body)
        if self.status == Status.COMPLETED and event.result is None and body.result:
            fields["result"] = body.result
        # More attempts than the event knows of: the error is of a later one, whose event follows.
        if self.status in ERRING and body.error and body.attempts <= event.attempt:
            _set_error(fields, body.error)


_UNKNOWN = Known(-1, -1, "", None, None)


def _fill_new(fields: dict[str, Any], body: Body) -> None:
    fields["payload"] = body.payload or ""
    fields["priority"], fields["requeues"] = body.priority, body.generation
    fields["tags"] = body.tags
    if body.enqueued_ms is not None:
        fields["enqueued_at"] = body.enqueued_ms
    if body.started_ms is not None:
        fields.setdefault("started_at", body.started_ms)


def collapse(
    events: Sequence[Event], known: Mapping[str, Known], epoch: int, tally: Tally
) -> dict[str, Change]:
    """One change a job that the events move on, by id, in the order of their first events."""
    changes: dict[str, Change] = {}
    for event in events:
        change = changes.get(event.job_id)
        if change is None:
            change = Change(known.get(event.job_id), event)
            if (epoch, event.seq) <= change.order:
                continue
            changes[event.job_id] = change
        order = (epoch, event.seq)
        if order > change.order:
            _apply(change, event, tally.of(event.at_ms, event.queue, event.task))
            change.order, change.event, change.status = order, event, event.status
    return changes


def _apply(change: Change, event: Event, sums: Sums) -> None:
    fields = change.fields
    if change.status in FINAL:  # requeued, or Redis has gone back in time
        fields.update(CLEARED)
    fields["status"], fields["attempts"] = event.status, event.attempt
    if event.seq == 1:
        sums.enqueued += 1
        fields["priority"] = event.more.get("priority", 0)
        if "tags" in event.more:
            fields["tags"] = event.more["tags"]
        fields["enqueued_at"], fields["requeues"] = event.at_ms, 0  # anew, perhaps: it was lost
    if event.args is not None:
        fields["payload"] = event.args
    _STEPS[event.status](change, event, sums)


def _queued(change: Change, event: Event, sums: Sums) -> None:
    if "requeues" in event.more:
        change.fields.update(CLEARED)
        change.fields["requeues"] = event.more["requeues"]
    change.fields["queued_at"] = change.queued_ms = event.at_ms
    change.fields["due_at"] = None


def _later(change: Change, event: Event, sums: Sums) -> None:
    change.fields["due_at"] = event.more.get("dueMs")


def _processing(change: Change, event: Event, sums: Sums) -> None:
    change.fields["worker"] = event.worker
    if "progress" in event.more:
        change.fields["progress"] = dumps(event.more["progress"])
        return
    change.fields["started_at"] = change.started_ms = event.at_ms
    if change.queued_ms is not None:
        add(sums.wait, event.at_ms - change.queued_ms)


def _retrying(change: Change, event: Event, sums: Sums) -> None:
    _ran(change, event, sums)
    sums.retried += 1
    change.fields["due_at"] = event.more.get("dueMs")
    _set_error(change.fields, event.error)


def _completed(change: Change, event: Event, sums: Sums) -> None:
    _ran(change, event, sums)
    sums.completed += 1
    change.fields.update(error="", error_type="", reason="", finished_at=event.at_ms)
    if event.result is not None:
        change.fields["result"] = event.result


def _failed(change: Change, event: Event, sums: Sums) -> None:
    _ran(change, event, sums)
    sums.failed += 1
    change.fields.update(reason=event.more.get("reason", ""), finished_at=event.at_ms)
    _set_error(change.fields, event.error)


def _cancelled(change: Change, event: Event, sums: Sums) -> None:
    _ran(change, event, sums)
    sums.cancelled += 1
    change.fields["finished_at"] = event.at_ms
    change.fields["due_at"] = None
    _set_error(change.fields, event.error)


def _ran(change: Change, event: Event, sums: Sums) -> None:
    """An attempt has ended, if one was under way."""
    if change.status == Status.PROCESSING and change.started_ms is not None:
        add(sums.run, event.at_ms - change.started_ms)


def _set_error(fields: dict[str, Any], error: str | None) -> None:
    if error is None:
        return
    fields["error"] = error
    kind = (mapping(error) or {}).get("type")
    fields["error_type"] = text(kind, MOST_TYPE) or ""  # '' when it is not of our making


_STEPS: dict[str, Callable[[Change, Event, Sums], None]] = {
    Status.SCHEDULED: _later,
    Status.WAITING: _later,
    Status.QUEUED: _queued,
    Status.PROCESSING: _processing,
    Status.RETRYING: _retrying,
    Status.COMPLETED: _completed,
    Status.FAILED: _failed,
    Status.CANCELLED: _cancelled,
}
