"""A gather as it stands in Redis, and on its way there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .codec import decode_payload
from .exceptions import CorruptJob
from .states import GatherReason, GatherStatus
from .texts import harmless


class GatherListener(NamedTuple):
    """A listener of a gather, as gather.lua takes it."""

    name: str
    queue: str
    task: str
    options: str
    priority: int
    audit: str


class GatherPlan(NamedTuple):
    """A gather as gather.lua takes it. ``payload``: of the listeners' jobs, as JSON; ``fields``:
    names and values of the plan, flat. Tuples, for it may travel as the arguments of a job."""

    key: str
    id: str
    ttl_ms: int
    poll_delay_ms: int
    payload: str
    fields: Sequence[str]
    listeners: Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherData:
    """Everything Redis knows of a gather, but its results. Instants are ms since the epoch, by
    Redis's clock."""

    key: str
    id: str
    status: GatherStatus
    reason: GatherReason = GatherReason.NONE
    threshold: int
    listeners: tuple[str, ...]
    missing: tuple[str, ...] = ()  # listeners without a result: now, or when it failed
    done_count: int = 0
    payload: Mapping[str, Any]
    follow_up_id: str = ""  # of the job that its end enqueued
    polls_left: int = 0
    made_ms: int | None = None
    ended_ms: int | None = None


def decode_gather(key: str, raw: Mapping[str, str], there: Sequence[str], done: str) -> GatherData:
    """A gather from its plan, the names beside its results and their count.

    Raises CorruptJob, and nothing else, when it is none.
    """
    try:
        return _decode(key, raw, there, done)
    except (ValueError, KeyError) as error:
        raise CorruptJob(f"the gather {key!r} cannot be read: {harmless(repr(error))}") from None


def _decode(key: str, raw: Mapping[str, str], there: Sequence[str], done: str) -> GatherData:
    listeners = tuple(raw["listeners"].split())
    status = GatherStatus(raw["status"])
    if status is GatherStatus.FAILED:
        missing = tuple(raw.get("missing", "").split())
    else:
        missing = tuple(name for name in listeners if name not in there)
    which = {GatherStatus.RELEASED: "then", GatherStatus.FAILED: "failure"}.get(status, "")
    return GatherData(
        key=key,
        id=raw["id"],
        status=status,
        reason=GatherReason(raw.get("reason", "")),
        threshold=int(raw["threshold"]),
        listeners=listeners,
        missing=missing,
        done_count=int(done or 0),
        payload=decode_payload(raw["payload"])[1],
        follow_up_id=f"{raw['id']}.{which}" if f"{which}_task" in raw else "",
        polls_left=int(raw["polls"]),
        made_ms=int(raw["made_ms"]),
        ended_ms=int(raw["ended_ms"]) if "ended_ms" in raw else None,
    )
