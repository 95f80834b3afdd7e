"""The records of a gather, and how one is decoded from its hashes in Redis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..exceptions import CorruptJob
from .codec import decode_payload
from .formatting import sanitize
from .parsing import parse_instant_ms, parse_int
from .statuses import GatherReason, GatherStatus


class GatherListener(NamedTuple):
    """A listener of a gather, as start_gather.lua takes it."""

    name: str
    queue: str
    task: str
    options: str
    priority: int
    audit: str
    unique: str = ""  # as in NewJob
    lane: str = ""


class GatherPlan(NamedTuple):
    """A gather as start_gather.lua takes it. ``payload``: of the listeners' jobs, as JSON;
    ``fields``: names and values of the plan, flat. Tuples, because it may be sent as arguments of a
    job."""

    key: str
    id: str
    ttl_ms: int
    poll_delay_ms: int
    payload: str
    fields: Sequence[str]
    listeners: Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherData:
    """Everything Redis knows of a gather except its results. Instants are ms since the epoch, by
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


def decode_gather(
    key: str, raw: Mapping[str, str], received: Sequence[str], done: str
) -> GatherData:
    """A gather from its plan, the names of its results and their count. Raises nothing but
    CorruptJob."""
    try:
        return _decode(key, raw, received, done)
    except (ValueError, KeyError) as error:
        raise CorruptJob(f"the gather {key!r} cannot be read: {sanitize(repr(error))}") from None


def _decode(key: str, raw: Mapping[str, str], received: Sequence[str], done: str) -> GatherData:
    listeners = tuple(raw["listeners"].split())
    status = GatherStatus(raw["status"])
    if status is GatherStatus.FAILED:
        missing = tuple(raw.get("missing", "").split())
    else:
        missing = tuple(name for name in listeners if name not in received)
    which = {GatherStatus.RELEASED: "then", GatherStatus.FAILED: "failure"}.get(status, "")
    return GatherData(
        key=key,
        id=raw["id"],
        status=status,
        reason=GatherReason(raw.get("reason", "")),
        threshold=parse_int(raw["threshold"]),
        listeners=listeners,
        missing=missing,
        done_count=parse_int(done or "0"),
        payload=decode_payload(raw["payload"])[1],
        follow_up_id=f"{raw['id']}.{which}" if f"{which}_task" in raw else "",
        polls_left=parse_int(raw["polls"]),
        made_ms=parse_instant_ms(raw["made_ms"]),
        ended_ms=parse_instant_ms(raw["ended_ms"]) if "ended_ms" in raw else None,
    )
