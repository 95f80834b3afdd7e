"""The records of workflows, gathers and workers, and how each is decoded from Redis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from ..exceptions import CorruptJob
from .codec import decode_payload, dumps
from .parsing import (
    MAX_INT32,
    Fields,
    int_or_none,
    object_or_none,
    parse_instant_ms,
    parse_int,
    text_or_none,
)
from .statuses import GatherReason, GatherStatus, WorkflowStatus
from .text import printable, sanitize

MAX_TEXT = 255  # characters of a name
MAX_LISTED = 1000  # queues or children


class WorkflowJob(NamedTuple):
    """A job of a workflow, as enqueue_workflow.lua takes it. Names of siblings are ``.<number>``,
    separated by spaces. A named tuple, because one is made for every job and goes into the call
    unchanged."""

    id: str
    queue: str
    task: str
    payload: str
    options: str
    priority: int
    when: str
    audit: str
    waits: int  # how many parents
    then: str  # names of its dependants, "*" when they are in a list
    after: str  # names of its parents
    on_fail: str  # an OnFailure; "" fails the workflow
    joins: str  # names of parents that keep their dependants in a list
    unique: str = ""  # as in NewJob
    lane: str = ""


class Push(NamedTuple):
    """A workflow on its way into Redis: the names and values of its own fields, and its jobs."""

    workflow_id: str
    fields: Sequence[str]
    jobs: Sequence[WorkflowJob]
    stored: bool = False  # it has an outbox row: Redis remembers its id until the row is deleted


class WorkflowPart(NamedTuple):
    """The part of a workflow that one script call creates: up to 100 jobs, usually all of them."""

    workflow_id: str
    fields: Sequence[str]
    jobs: Sequence[WorkflowJob]
    is_first: bool
    is_last: bool
    stored: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowData:
    """Everything Redis has about a workflow. Times are ms since the epoch, by Redis's clock."""

    id: str
    status: WorkflowStatus
    name: str = ""
    is_paused: bool = False
    total: int = 0
    waiting: int = 0
    processing: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    generation: int = 0  # how often a retry has resumed it
    made_ms: int | None = None
    ended_ms: int | None = None

    @property
    def queued(self) -> int:
        """Jobs that are in a queue or due later."""
        ended = self.completed + self.failed + self.cancelled
        return self.total - self.waiting - self.processing - ended


@dataclass(frozen=True, slots=True)
class WorkflowNode:
    """A job as a node of its workflow's graph; ``after``: the numbers of its parents."""

    number: int
    status: str
    task: str
    after: tuple[int, ...] = ()


ENDED_COUNTS = ("completed", "failed", "cancelled")  # also columns of a workflow's record
JOB_COUNTS = ("waiting", "queued", "processing", *ENDED_COUNTS)
_COUNTS = ("total", "waiting", "processing", *ENDED_COUNTS, "generation")
_INSTANTS = ("made_ms", "ended_ms")
_STATUSES = frozenset(WorkflowStatus)
WORKFLOW_FIELDS = ("status", "name", "paused_ms", *_COUNTS, *_INSTANTS)  # without parents' results


def decode_workflow(workflow_id: str, raw: Mapping[str, str]) -> WorkflowData:
    """A workflow's hash as WorkflowData. Raises only CorruptJob."""
    fields = Fields(raw)
    counts = {key: fields.integer(key, MAX_INT32) for key in _COUNTS if key in raw}
    instants = {key: fields.instant_ms(key) for key in _INSTANTS if key in raw}
    if raw["status"] not in _STATUSES:
        fields.fault("status", raw["status"])
    if fields.faults:
        raise CorruptJob(
            f"the hash of workflow {workflow_id} cannot be read: {'; '.join(fields.faults)}"
        )
    return WorkflowData(
        id=workflow_id,
        status=WorkflowStatus(raw["status"]),
        name=printable(raw.get("name", "")),
        is_paused="paused_ms" in raw,
        **{key: found for key, found in {**counts, **instants}.items() if found is not None},
    )


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
    """A gather as start_gather.lua takes it. ``payload``: that of the listeners' jobs, as JSON;
    ``fields``: the plan's names and values, flat. Tuples, because it may be sent as arguments of a
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
    """Everything Redis has about a gather except its results. Times are ms since the epoch, by
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
    follow_up_id: str = ""  # of the job that it enqueued when it ended
    polls_left: int = 0
    made_ms: int | None = None
    ended_ms: int | None = None


def decode_gather(
    key: str, raw: Mapping[str, str], received: Sequence[str], done: str
) -> GatherData:
    """A gather from its plan, the names of its results and their count. Raises only CorruptJob."""
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


class WorkerOrder(StrEnum):
    QUIET = "quiet"  # finish the running jobs, take no more
    RESUME = "resume"  # take jobs again
    STOP = "stop"  # end, as after SIGTERM


class WorkerState(StrEnum):
    RUNNING = "running"
    QUIET = "quiet"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What a worker reports about itself."""

    host: str
    version: str
    started_ms: int  # by its machine's clock
    state: str
    queues: tuple[str, ...]
    processes: int  # processes that run jobs
    threads: int  # of each process, for sync jobs
    #: resident bytes (0 if unknown) by the last part of the child's id
    children: Mapping[str, int] = field(default_factory=dict)

    @property
    def slots(self) -> int:
        """How many sync jobs it can run at a time."""
        return self.processes * self.threads

    @property
    def memory(self) -> int:
        """Resident bytes of its children. Pages that they share count once for each."""
        return sum(self.children.values())

    def text(self) -> str:
        return dumps(asdict(self))


def worker_of(child: str) -> str:
    """The id of a child's worker (worker/identity.py)."""
    return child.rpartition(".")[0] or child


def parse_report(text: str | None) -> WorkerReport | None:
    """The inverse of ``WorkerReport.text``; None for anything that no worker wrote."""
    raw = object_or_none(text)
    if raw is None:
        return None
    try:
        return WorkerReport(
            _text(raw["host"]), _text(raw["version"]), _number(raw["started_ms"]),
            WorkerState(raw["state"]).value, tuple(map(_text, list(raw["queues"])[:MAX_LISTED])),
            _number(raw["processes"]), _number(raw["threads"]),
            {name: _number(size) for name, size in list(raw["children"].items())[:MAX_LISTED]},
        )  # fmt: skip
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _text(value: Any) -> str:
    found = text_or_none(value, MAX_TEXT)
    if found is None:
        raise ValueError("not text")
    return found


def _number(value: Any) -> int:
    found = int_or_none(value, 0, 2**53)
    if found is None:
        raise ValueError("not a number")
    return found
